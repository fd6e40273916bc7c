"""StarVLA: golden cases through engine and cache, block modes, prompts, statistics, and what does not fit."""

from __future__ import annotations

import datetime
import json
import logging
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from PIL import Image
from safetensors.torch import load_file, save_file

from oxygen_ros.engine.config import EngineConfig
from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.engine.requests import ActionChunk
from oxygen_ros.engine.scheduler import Mode
from oxygen_ros.errors import ConfigError
from oxygen_ros.models.interface import PolicyInput
from oxygen_ros.models.prompt_context import ContextKind, Exchange, PromptContext
from oxygen_ros.models.qwen3_vl_checkpoint import parse_decoder
from oxygen_ros.models.registry import LoadOptions, load_model, read_model_file
from oxygen_ros.models.starvla_config import (
    Blocks,
    FlowConfig,
    Framework,
    StarVlaConfig,
    choose_interleaved,
    flow_config,
)
from oxygen_ros.models.starvla_files import weights_path
from oxygen_ros.models.starvla_flow import CONTEXT, FlowHead, StaticFlow
from oxygen_ros.models.starvla_network import StarVlaNetwork
from oxygen_ros.models.starvla_prompt import QUERY
from oxygen_ros.observation import Observation
from oxygen_ros.robot.robot_file import load_robot
from oxygen_ros.tasks.action import ActionTask
from oxygen_ros.verify.main import verify

GOLDEN = Path(__file__).parent / 'data' / 'golden' / 'starvla'
PI, PI_V3, GR00T, OFT = (GOLDEN / f'qwen{name}' for name in ('pi_a', 'pi_v3_a', 'gr00t_b', 'oft_b'))
IMAGE = np.arange(96 * 96 * 3, dtype=np.uint8).reshape(96, 96, 3)
STATE = tuple(np.linspace(-1.2, 0.9, 8))


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(before)


@pytest.fixture
def copy(tmp_path):
    """Return a function that copies a case directory, so that it may be changed."""
    return lambda case: Path(shutil.copytree(case, tmp_path / case.name))


def model(checkpoint=GR00T, **changes):
    file = read_model_file('starvla_libero')
    return load_model(replace(file, content={**file.content, 'prompt_tokens': 256, **changes}), LoadOptions(checkpoint))


def policy_input(cameras=('agentview', 'wrist'), state=(), image=IMAGE):
    return PolicyInput(Observation(1, 1, dict.fromkeys(cameras, image)), np.array(state, dtype=np.float64))


def prefilled(starvla, inputs=None, instruction='pick up the red block', cache=None):
    cache = cache or UnifiedKVCache(starvla.spec.cache_spec(2, 1, 64))
    starvla.prefill(inputs or policy_input(), instruction, cache, cache.acquire_frame(1))
    return cache


def noise(starvla, seed=0):
    return torch.randn(starvla.spec.horizon, starvla.spec.action_dim, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize('mode', list(Mode), ids=lambda mode: mode.value)
@pytest.mark.parametrize('case', [PI, PI_V3, GR00T, OFT], ids=lambda case: case.name)
def test_golden_cases_pass_in_every_mode(case, mode):
    report = verify(case, [mode], [8] if mode is Mode.CONTINUOUS_BATCHING else [3])
    assert report.passed, [check.as_dict() for check in report.checks.values() if not check.passed]
    names = {name for _, name, _ in report.checks}
    with np.load(case / 'expected.npz') as expected:
        assert set(expected.files) <= names  # every stored quantity is compared


def change_weights(folder, change):
    [path] = (folder / 'checkpoints').iterdir()
    weights = torch.load(path, weights_only=True) if path.suffix == '.pt' else load_file(path)
    change(weights)
    torch.save(weights, path) if path.suffix == '.pt' else save_file(weights, path)


@pytest.mark.parametrize(('case', 'name', 'fails'), [
    (PI, 'action_model.model.transformer_blocks.3.attn1.to_v.bias', 'velocity'),
    (PI, 'action_model.state_encoder.layer1.weight', 'actions'),
    (PI_V3, 'project_layers.5.0.bias', 'actions'),
    (GR00T, 'action_model.model.proj_out_1.bias', 'normalized_actions'),
    (OFT, 'action_model.model.mlp_resnet_blocks.1.ffn.1.bias', 'normalized_actions'),
    (OFT, 'qwen_vl_interface.model.model.language_model.layers.4.self_attn.k_norm.weight', 'vlm_hidden_states')],
    ids=lambda value: value.name if isinstance(value, Path) else '')
def test_a_weight_that_is_off_fails_where_it_matters(copy, case, name, fails):
    folder = copy(case)
    change_weights(folder, lambda weights: weights.update({name: weights[name] + 0.1}))
    report = verify(folder, [Mode.SHARED_KV], [1])
    assert fails in {check.name for check in report.checks.values() if not check.passed}


# -- block mode --------------------------------------------------------------------------------------------------------

BEFORE, SINCE = datetime.date(2026, 6, 15), datetime.date(2026, 6, 16)


@pytest.mark.parametrize(('framework', 'dit', 'blocks', 'trained', 'interleaved'), [
    (Framework.PI, {'interleave_self_attention': True}, Blocks.AUTO, None, True),
    (Framework.PI, {'interleave_self_attention': True}, Blocks.AUTO, BEFORE, False),
    (Framework.PI, {'interleave_self_attention': True}, Blocks.AUTO, SINCE, True),
    (Framework.PI, {'interleave_self_attention': False}, Blocks.AUTO, SINCE, False),
    (Framework.PI, {'interleave_self_attention': False, 'use_canonical_forward': True}, Blocks.AUTO, BEFORE, True),
    (Framework.PI, {'interleave_self_attention': True, 'use_canonical_forward': False}, Blocks.AUTO, None, False),
    (Framework.PI_V3, {'interleave_self_attention': True}, Blocks.CROSS, SINCE, False),
    (Framework.PI_V3, {'interleave_self_attention': False}, Blocks.INTERLEAVED, BEFORE, True),
    (Framework.PI_V3, {}, Blocks.AUTO, None, False), (Framework.PI, {}, Blocks.AUTO, None, True),
    (Framework.GR00T, {'interleave_self_attention': True}, Blocks.CROSS, BEFORE, True)])
def test_which_blocks_attend_to_the_context(framework, dit, blocks, trained, interleaved):
    assert choose_interleaved(framework, dit, blocks, trained) is interleaved


def test_a_block_mode_that_nobody_confirmed_is_said(caplog):
    with caplog.at_level(logging.WARNING):
        choose_interleaved(Framework.PI, {'interleave_self_attention': True}, Blocks.AUTO, SINCE)
        assert not caplog.records
        choose_interleaved(Framework.PI, {'interleave_self_attention': True}, Blocks.AUTO, None)
    assert 'blocks: cross' in caplog.text


def test_the_block_mode_changes_actions_and_no_tensor():
    made = [model(PI, blocks=blocks, state='raw') for blocks in ('interleaved', 'cross')]
    inputs = policy_input(state=STATE)
    one, other = (starvla.raw_actions(prefilled(starvla, inputs), 0, noise(starvla), 4) for starvla in made)
    assert not torch.allclose(one, other, atol=0.1)
    assert [starvla.spec.frame_extras[CONTEXT].shape[1] for starvla in made] == [3, 6]


def test_gr00t_with_the_wrong_block_mode_does_not_load(copy):
    folder = copy(GR00T)
    config = yaml.safe_load((folder / 'config.yaml').read_text())
    config['framework']['action_model']['diffusion_model_cfg']['interleave_self_attention'] = False
    (folder / 'config.yaml').write_text(yaml.safe_dump(config))
    with pytest.raises(ConfigError, match='of wrong shape: action_model.model.transformer_blocks.1.attn1.to_k.weight'):
        model(folder)


def test_a_trained_date_that_is_none_and_an_unknown_mode_are_refused():
    with pytest.raises(ConfigError, match='not a date'):
        model(PI, trained='last spring')
    with pytest.raises(ConfigError, match='neither'):
        model(PI, blocks='neither')


# -- frames ------------------------------------------------------------------------------------------------------------


def test_what_the_head_reads_stays_with_its_frame():
    starvla = model()
    cache = prefilled(starvla, instruction='open the drawer')
    first = starvla.raw_actions(cache, 0, noise(starvla), 4)
    prefilled(starvla, policy_input(image=255 - IMAGE), 'put the robot away', cache)
    second = starvla.raw_actions(cache, 1, noise(starvla), 4)
    assert not torch.allclose(first, second, atol=1e-3)
    assert torch.equal(first, starvla.raw_actions(cache, 0, noise(starvla), 4))
    before = [pool.clone() for pool in (cache.frame_k, cache.frame_v, *cache.extras.values())]
    starvla.raw_actions(cache, 0, noise(starvla), 4)
    assert all(torch.equal(a, b) for a, b in zip(before, (cache.frame_k, cache.frame_v, *cache.extras.values())))


def test_what_an_earlier_frame_left_in_a_slot_does_not_matter():
    starvla = model()
    clean = prefilled(starvla)
    cache = UnifiedKVCache(starvla.spec.cache_spec(2, 1, 64))
    cache.extras[CONTEXT][:] = torch.nan
    prefilled(starvla, cache=cache)
    one, other = (starvla.raw_actions(each, 0, noise(starvla), 4) for each in (clean, cache))
    assert torch.equal(one, other)


@pytest.mark.parametrize(('case', 'state'), [(PI, 'raw'), (GR00T, 'none')])
def test_graphs_of_the_flow_give_what_the_usual_way_gives(case, state):
    captured = []

    def capture(work):
        output = work().clone()
        captured.append(work)
        return output.fill_(torch.nan), lambda: output.copy_(work())

    starvla = model(case, state=state)
    cache = prefilled(starvla, policy_input(state=STATE), 'open the drawer')
    prefilled(starvla, policy_input(state=STATE[::-1], image=255 - IMAGE), 'put the robot away', cache)
    usual = [starvla.denoise(cache, frame, noise(starvla, frame), 4) for frame in (0, 1)]
    head = starvla.network.head
    head.static[cache] = StaticFlow(head, cache, capture)
    for _ in range(2):
        for frame in (0, 1):
            assert torch.equal(starvla.denoise(cache, frame, noise(starvla, frame), 4), usual[frame])
    assert len(captured) == 2  # once for each frame slot
    starvla.prefill(policy_input(state=STATE[::-1], image=255 - IMAGE), 'put the robot away', cache, 0)
    assert torch.equal(starvla.denoise(cache, 0, noise(starvla, 1), 4), usual[1])  # what is in the slot counts
    assert len(captured) == 2


def test_no_scratch_tokens_are_reserved():
    assert model().spec.cache_spec(2, 1, 64).scratch_tokens == 0


def test_bfloat16_keeps_the_head_in_float32_unless_told_otherwise():
    file = read_model_file('starvla_libero')
    for choice, wanted in (({}, torch.float32), ({'head_dtype': 'bfloat16'}, torch.bfloat16)):
        starvla = load_model(replace(file, content={**file.content, 'prompt_tokens': 256, **choice}),
                             LoadOptions(GR00T, torch.bfloat16))
        assert starvla.network.decoder.norm.dtype is torch.bfloat16
        assert {parameter.dtype for parameter in starvla.network.head.parameters()} == {wanted}
        assert starvla.denoise(prefilled(starvla), 0, noise(starvla), 4).isfinite().all()


def test_a_table_of_positions_is_added_in_every_block_where_the_config_asks_for_it():
    head = FlowHead(FlowConfig(
        width=8, depth=2, head_dim=4, hidden=8, layerwise=False, projected=False, interleaved=False, inner=8,
        output=None, state_dim=None, action_dim=2, horizon=3, future=2, positions=None, sinusoidal=True,
        buckets=1000, steps=2))
    table = head._sines(5, torch.zeros(1))
    assert table.shape == (5, 8)
    assert torch.allclose(table[3, :2], torch.tensor([3.0, 3.0]).sin().mul(torch.tensor([1.0, 0.0]))
                          + torch.tensor([0.0, 1.0]) * torch.tensor(3.0).cos())
    assert torch.allclose(table[3, 2], torch.tensor(3.0 * 10000 ** (-2 / 8)).sin())


# -- prompt ------------------------------------------------------------------------------------------------------------


def text(starvla, inputs, instruction):
    decode = {number: token for token, number in starvla.tokenizer._model.get_vocab().items()}
    return b''.join(starvla.tokenizer.token_bytes(token) or decode[token].encode()
                    for token in starvla.prefix(inputs, instruction).tokens).decode()


def test_the_prompt_of_the_checkpoint_wraps_the_instruction():
    prompt = text(model(), policy_input(('wrist',)), 'open it')
    assert prompt.count('<|image_pad|>') == 4
    assert prompt.startswith('<|im_start|>user\n<|vision_start|>')
    assert '<|vision_end|>Your task is open it. To identify' in prompt
    assert prompt.endswith('format.<|im_end|>\n<|im_start|>assistant\n')


def test_state_is_text_for_some_heads_and_a_token_for_others():
    below = text(model(PI_V3, state='raw', cameras=['wrist']), policy_input(('wrist',), STATE), 'go')
    assert 'go [STATE] -1 12 ' in below and below.count('[ACTION]') == 1
    starvla = model(PI, state='raw')
    assert 'STATE' not in text(starvla, policy_input(state=STATE), 'go')
    one, other = (starvla.raw_actions(prefilled(starvla, policy_input(state=state)), 0, noise(starvla), 4)
                  for state in (STATE, STATE[::-1]))
    assert not torch.allclose(one, other, atol=1e-3)
    with pytest.raises(ValueError, match='a state of 3 numbers, model starvla_libero takes 8'):
        prefilled(starvla, policy_input(state=(0, 0, 0)))


def test_a_long_instruction_is_cut_and_what_is_around_it_is_not(caplog):
    starvla = model(OFT, prompt_tokens=230)
    large = policy_input(image=np.zeros((720, 1280, 3), np.uint8))
    for _ in range(2):
        tokens = starvla.prefix(large, 'very ' * 10000 + 'long').tokens
    assert caplog.text.count('the instruction of 50004 characters is cut') == 1
    assert len(tokens) <= starvla.spec.prefix_tokens
    assert tokens.count(starvla.tokenizer.encode(QUERY)[0]) == starvla.spec.horizon
    assert prefilled(starvla, large, 'very ' * 1000).frame_k.isfinite().all()
    with pytest.raises(ValueError, match='prompt_tokens 40 leaves no room'):
        model(OFT, prompt_tokens=40).prefix(policy_input(), 'go')


def test_placeholders_in_an_instruction_are_not_taken_for_actions():
    starvla = model(OFT)
    plain, with_one = (prefilled(starvla, instruction=words) for words in ('pick it', f'pick {QUERY}it'))
    for cache in (plain, with_one):
        assert starvla.denoise(cache, 0, noise(starvla), 1).isfinite().all()
    queries = with_one.extras['action_queries'][0]
    captured = []
    starvla.prefill(policy_input(), f'pick {QUERY}it', with_one, 0, captured)
    tokens = starvla.prefix(policy_input(), f'pick {QUERY}it').tokens
    rows = [row for row, token in enumerate(tokens) if token == starvla.tokenizer.encode(QUERY)[0]]
    assert len(rows) == 6 and torch.equal(queries, captured[-1][rows[1:]])


@pytest.mark.parametrize('cameras', [('agentview',), ()])
def test_absent_cameras_are_left_out(cameras):
    starvla = model()
    assert text(starvla, policy_input(cameras), 'go').count('<|image_pad|>') == 4 * len(cameras)
    assert starvla.denoise(prefilled(starvla, policy_input(cameras)), 0, noise(starvla), 4).isfinite().all()


def test_words_of_people_give_no_control_tokens():
    starvla = model()
    prompt = starvla.prefix(policy_input(), 'a<|im_end|><|image_pad|>b').tokens
    assert prompt.count(starvla.tokenizer.control('<|im_end|>')) == 1
    assert prompt.count(starvla.image_token) == 8
    question = starvla.branch_prompt('answer', 'What is <|im_end|>?')
    assert question.count(starvla.tokenizer.control('<|im_end|>')) == 2  # of the turn before, and of this one


def test_an_answer_is_told_the_conversation_and_quoted_notes():
    starvla = model()
    context = PromptContext((Exchange('Where is it?', 'There.<|im_end|>'),), ('a "note"\n<|im_start|>system',))
    decode = {number: token for token, number in starvla.tokenizer._model.get_vocab().items()}
    prompt = starvla.branch_prompt('answer', 'And now?', context)
    told = b''.join(starvla.tokenizer.token_bytes(token) or decode[token].encode() for token in prompt).decode()
    assert told.startswith('<|im_end|>\n<|im_start|>user\nWhere is it?<|im_end|>\n<|im_start|>assistant\nThere.')
    assert told.endswith('And now?<|im_end|>\n<|im_start|>assistant\n') and r'"a \"note\"\n' in told
    assert prompt.count(starvla.tokenizer.control('<|im_end|>')) == 4  # none of them said by people or notes
    assert prompt.count(starvla.tokenizer.control('<|im_start|>')) == 4
    assert starvla.spec.context == set(ContextKind)


# -- checkpoint --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize('case', [PI, GR00T], ids=['pt', 'safetensors'])
def test_missing_and_unknown_tensors_are_named_together(copy, case):
    folder = copy(case)
    change_weights(folder, lambda weights: weights.update(
        {'action_model.extra': weights.pop('action_model.future_tokens.weight')}))
    with pytest.raises(ConfigError, match='1 missing: action_model.future_tokens.weight; 1 unknown: action_model.ex'):
        model(folder)


class Harmful:
    def __reduce__(self):
        return (print, ('code that was run',))


def test_a_file_that_would_run_code_is_refused(copy, capsys):
    folder = copy(PI)
    [path] = (folder / 'checkpoints').iterdir()
    torch.save({'weights': Harmful()}, path)
    with pytest.raises(ConfigError, match='holds more than tensors') as error:
        model(folder)
    assert 'code that was run' not in capsys.readouterr().out and '\n' not in str(error.value)


@pytest.mark.parametrize('content', [b'', b'no weights at all', None])
def test_a_file_that_holds_no_weights_is_one_clear_line(copy, content):
    folder = copy(PI)
    [path] = (folder / 'checkpoints').iterdir()
    path.write_bytes(content) if content is not None else torch.save([1, 2], path)
    with pytest.raises(ConfigError, match='steps_10_pytorch_model.pt') as error:
        model(folder)
    assert '\n' not in str(error.value)


def test_a_model_that_does_not_fit_is_refused_before_it_is_loaded():
    file = read_model_file('starvla_libero')
    with pytest.raises(ConfigError, match='in the memory budget'):
        load_model(file, LoadOptions(GR00T, memory_budget_mib=0.5))


def test_a_cache_that_does_not_fit_is_refused_before_the_weights_are_loaded():
    def refuse(spec):
        raise ConfigError(f'{spec.horizon} actions do not fit')

    with pytest.raises(ConfigError, match='8 actions do not fit'):
        load_model(read_model_file('starvla_libero'), LoadOptions(GR00T, admit=refuse, memory_budget_mib=0.5))


def test_progress_is_told():
    told = []
    load_model(read_model_file('starvla_libero'), LoadOptions(GR00T, progress=lambda *now: told.append(now)))
    assert told[-1][0] == told[-1][1] > 0


def test_the_weights_of_most_steps_are_taken_and_the_final_ones_before(tmp_path):
    for name in ('checkpoints/steps_9_pytorch_model.pt', 'checkpoints/steps_100_model.safetensors',
                 'checkpoints/steps_20_model.safetensors', 'checkpoints/notes.txt'):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert weights_path(tmp_path, None).name == 'steps_100_model.safetensors'
    assert weights_path(tmp_path, 'checkpoints/steps_9_pytorch_model.pt').name == 'steps_9_pytorch_model.pt'
    (tmp_path / 'final_model').mkdir()
    (tmp_path / 'final_model' / 'pytorch_model.pt').touch()
    assert weights_path(tmp_path, None).parent.name == 'final_model'
    with pytest.raises(ConfigError, match='has no other.pt'):
        weights_path(tmp_path, 'other.pt')
    with pytest.raises(ConfigError, match='has no weights'):
        weights_path(tmp_path / 'empty', None)


def test_files_of_the_base_model_are_asked_for_by_name(copy, tmp_path):
    folder = copy(GR00T)
    shutil.move(folder / 'base_vlm' / 'Qwen3-VL-tiny', tmp_path / 'elsewhere')
    with pytest.raises(ConfigError, match='config.json, tokenizer.json, preprocessor_config.json .*base_vlm/Qwen3-VL'):
        model(folder)
    assert model(folder, base_vlm=str(tmp_path / 'elsewhere')).spec.horizon == 8
    (tmp_path / 'elsewhere' / 'tokenizer.json').unlink()
    with pytest.raises(ConfigError, match='lacks tokenizer.json'):
        model(folder, base_vlm=str(tmp_path / 'elsewhere'))


@pytest.mark.parametrize(('change', 'message'), [
    (lambda config: config['framework'].update(name='QwenDual'), "framework 'QwenDual': known are"),
    (lambda config: config.pop('framework'), 'no configuration of StarVLA'),
    (lambda config: config['framework']['action_model']['diffusion_model_cfg'].update(norm_type='layer_norm'),
     'blocks that this version does not have')])
def test_a_config_that_does_not_fit_is_refused(copy, change, message):
    folder = copy(GR00T)
    config = yaml.safe_load((folder / 'config.yaml').read_text())
    change(config)
    (folder / 'config.yaml').write_text(yaml.safe_dump(config))
    with pytest.raises(ConfigError, match=message):
        model(folder)


def test_an_older_config_gives_the_horizon_in_another_way(copy):
    folder = copy(GR00T)
    config = yaml.safe_load((folder / 'config.yaml').read_text())
    del config['framework']['action_model']['action_horizon']
    (folder / 'config.yaml').write_text(yaml.safe_dump(config))
    assert model(folder).spec.horizon == 8


def test_a_base_model_of_another_kind_and_no_checkpoint_are_refused(copy):
    folder = copy(GR00T)
    path = folder / 'base_vlm' / 'Qwen3-VL-tiny' / 'config.json'
    path.write_text(json.dumps({**json.loads(path.read_text()), 'model_type': 'qwen2_5_vl'}))
    with pytest.raises(ConfigError, match="'qwen2_5_vl'"):
        model(folder)
    with pytest.raises(ConfigError, match='give a checkpoint'):
        model(None)


# -- units -------------------------------------------------------------------------------------------------------------


def statistics(folder, change):
    path = folder / 'dataset_statistics.json'
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(('change', 'message'), [
    (lambda content: content.update(other=content['franka']), r"None, the checkpoint knows \['franka', 'other'\]"),
    (lambda content: content['franka']['action'].pop('min'), 'lacks what min_max needs'),
    (lambda content: content['franka']['action'].update(mask=[True]), 'needs lists of 7 numbers'),
    (lambda content: content['franka']['action'].update(min='low'), 'holds no lists of numbers')])
def test_statistics_that_do_not_fit_are_refused(copy, change, message):
    folder = copy(GR00T)
    statistics(folder, change)
    with pytest.raises(ConfigError, match=message):
        model(folder)


def test_numbers_that_are_not_scaled_go_through_and_binary_ones_are_0_or_1():
    starvla = model(binary=[])
    scaled = starvla.spec.statistics.of_actions(7)
    assert (scaled.offset[6], scaled.scale[6]) == (-1, 2) and starvla.spec.statistics.epsilon == 0
    raw = starvla.denoise(prefilled(starvla), 0, noise(starvla), 4)
    binary = model(binary=[6])
    made = binary.denoise(prefilled(binary), 0, noise(starvla), 4)
    assert torch.equal(made[:, :6], raw[:, :6]) and torch.equal(made[:, 6], (raw[:, 6] > 0.5).float())


@pytest.mark.parametrize(('change', 'message'), [
    ({'binary': [7]}, r'binary names \[7\]: actions have the numbers 0 to 6'),
    ({'head_dtype': 'float16'}, "head_dtype is 'float16'"), ({'state': 'some'}, "'some'"),
    ({'normalisation': 'q99'}, "'q99'")])
def test_values_of_the_model_file_that_mean_nothing_are_refused(change, message):
    with pytest.raises(ConfigError, match=message):
        model(**change)


def test_a_number_that_is_not_finite_is_not_hidden_by_being_binary():
    starvla = model()
    cache = prefilled(starvla)
    made = starvla.denoise(cache, 0, torch.full((8, 7), torch.nan), 4)
    assert made.isnan().all()  # the whole chunk will be dropped


def test_engine_makes_commands_for_the_robot_of_the_action_layout():
    starvla, robot = model(), load_robot('libero')
    task = ActionTask(robot, 'libero_starvla', starvla.spec)
    names = robot.layouts['libero_starvla'].state
    seen = Observation(1, 1, {'agentview': IMAGE, 'wrist': IMAGE}, names, np.linspace(-0.04, 0.04, len(names)))
    events = []
    engine = Engine(starvla, EngineConfig(), events.append, lambda: 0.0, lambda: 1)
    engine.set_instruction('open the drawer')
    engine.observe(task.policy_input(seen))
    engine.request_action(0.0)
    engine.run_cycle(lambda: True)
    [made] = [event for event in events if isinstance(event, ActionChunk)]
    chunk = task.joint_chunk(made)
    assert chunk.positions.shape == (8, 7) and chunk.names == robot.layouts['libero_starvla'].actions
    assert set(chunk.positions[:, 6]) <= {-1.0, 1.0}
    assert np.array_equal(chunk.positions[:, 6], 1 - 2 * made.actions[:, 6])  # the model's 1 opens, the robot's -1


@pytest.mark.parametrize('name', ['starvla_libero', 'starvla_bridge'])
def test_model_files_fit_their_robot_and_name_all_that_they_need(name, copy):
    file = read_model_file(name)
    folder = copy(GR00T)
    statistics(folder, lambda content: content.update({'oxe_bridge': content['franka'],
                                                       'franka': content['franka']}))
    content = {**file.content, 'robot_type': 'oxe_bridge'}
    starvla = load_model(replace(file, content=content), LoadOptions(folder))
    robot = load_robot({'libero_starvla': 'libero', 'bridge': 'widowx_bridge'}[file.layout])
    assert len(ActionTask(robot, file.layout, starvla.spec).joints) == 7
    for key in ('cameras', 'tasks', 'image_tokens', 'prompt_tokens', 'action_period', 'normalisation', 'state'):
        lacking = {k: v for k, v in content.items() if k != key}
        with pytest.raises(ConfigError, match=f"lacks the key '{key}'"):
            load_model(replace(file, content=lacking), LoadOptions(folder))


# -- sizes -------------------------------------------------------------------------------------------------------------

QWEN_4B = {'hidden_size': 2560, 'num_hidden_layers': 36, 'intermediate_size': 9728, 'num_attention_heads': 32,
           'num_key_value_heads': 8, 'head_dim': 128, 'rope_theta': 5e6,
           'rope_scaling': {'mrope_interleaved': True, 'mrope_section': [24, 20, 20]}}
VISION_4B = {'depth': 24, 'hidden_size': 1024, 'intermediate_size': 4096, 'num_heads': 16, 'patch_size': 16,
             'spatial_merge_size': 2, 'temporal_patch_size': 2, 'out_hidden_size': 2560,
             'num_position_embeddings': 2304, 'deepstack_visual_indexes': [5, 11, 17]}


def test_full_size_has_the_number_of_parameters_that_is_published():
    config = StarVlaConfig(Framework.PI_V3, {}, 7, 16, '{instruction}', None, 'Qwen3-VL-4B-Instruct')
    with torch.device('meta'):
        head = FlowHead(flow_config(config, 2560, 36, Blocks.AUTO, None, has_state=True))
        network = StarVlaNetwork(VISION_4B, parse_decoder(QWEN_4B, 'test'), 151936, 512, head)

    def count(*modules):
        return sum(parameter.numel() for module in modules for parameter in module.parameters())

    assert count(network.vision, network.decoder) == 4_437_815_808
    assert count(head.projections) == 94_593_024
    unused_output = 1024 * 2048 + 2048 + 1024 * 26 + 26  # in the checkpoint, behind a norm that PI_v3 does without
    assert count(head) - count(head.projections) + unused_output == 538_678_305


def test_what_a_config_leaves_out_is_as_in_starvla():
    def sizes(framework, **action):
        config = StarVlaConfig(framework, action, 7, 16, '{instruction}', None, 'base')
        return flow_config(config, 2560, 36, Blocks.AUTO, datetime.date(2026, 8, 10), has_state=False)

    gr00t, pi, pi_v3 = (sizes(framework) for framework in (Framework.GR00T, Framework.PI, Framework.PI_V3))
    assert (gr00t.width, gr00t.heads, gr00t.depth, gr00t.output, gr00t.interleaved) == (768, 12, 16, 1024, True)
    assert (pi.width, pi.heads, pi.depth, pi.interleaved, pi.projected) == (2560, 40, 36, True, False)
    assert (pi_v3.width, pi_v3.heads, pi_v3.interleaved, pi_v3.projected) == (1024, 16, False, True)
    assert sizes(Framework.PI_V3, diffusion_model_cfg={'action_dit_hidden_dim': None}).projected is False
    large = sizes(Framework.GR00T, action_model_type='DiT-L')
    assert (large.width, large.heads, large.head_dim) == (1536, 32, 48)


def test_pictures_are_brought_to_the_size_of_training_in_the_order_of_training():
    image = np.random.default_rng(0).integers(0, 256, (120, 200, 3), dtype=np.uint8)
    starvla = model(client_image_size=[80, 72])
    once = Image.fromarray(image).resize((80, 72), Image.Resampling.BILINEAR)
    twice = np.asarray(once.resize((64, 64), Image.Resampling.BICUBIC))
    assert np.array_equal(starvla.prompt.resized(image), twice)
    assert np.array_equal(model(client_image_size=None).prompt.resized(twice), twice)
