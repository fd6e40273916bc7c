"""Xiaomi-Robotics-0: golden cases through engine and cache, prompts, forms of execution, and what does not fit."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from oxygen_ros.engine.config import EngineConfig
from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.engine.requests import ActionChunk
from oxygen_ros.engine.scheduler import Mode
from oxygen_ros.errors import ConfigError
from oxygen_ros.models.byte_tokenizer import ByteTokenizer
from oxygen_ros.models.interface import PolicyInput
from oxygen_ros.models.qwen3_vl import QwenConfig, prompt_positions
from oxygen_ros.models.realtime_chunking import ChunkingMethod, PreviousChunk
from oxygen_ros.models.registry import LoadOptions, load_model, read_model_file
from oxygen_ros.models.xiaomi_dit import Asynchrony
from oxygen_ros.observation import Observation
from oxygen_ros.robot.robot_file import load_robot
from oxygen_ros.tasks.action import ActionTask
from oxygen_ros.verify.main import verify

GOLDEN = Path(__file__).parent / 'data' / 'golden' / 'xiaomi'
CASE = GOLDEN / 'xr0_a'
IMAGE = np.arange(64 * 64 * 3, dtype=np.uint8).reshape(64, 64, 3)


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(before)


@pytest.fixture
def copy(tmp_path):
    """Return a case directory that may be changed."""
    return Path(shutil.copytree(CASE, tmp_path / 'case'))


def model(checkpoint=CASE, **changes):
    file = read_model_file('xiaomi_robotics_0')
    return load_model(replace(file, content={**file.content, **changes}), LoadOptions(checkpoint))


def policy_input(cameras=('agentview', 'wrist'), state=(0.1, 0.2)):
    return PolicyInput(Observation(1, 1, dict.fromkeys(cameras, IMAGE)), np.array(state))


def prefilled(xiaomi, inputs=None, instruction='pick up the red block'):
    cache = UnifiedKVCache(xiaomi.spec.cache_spec(2, 1, 64))
    xiaomi.prefill(inputs or policy_input(), instruction, cache, cache.acquire_frame(1))
    return cache


@pytest.mark.parametrize('mode', list(Mode), ids=lambda mode: mode.value)
@pytest.mark.parametrize('case', ['xr0_a', 'xr0_b'])
def test_golden_cases_pass_in_every_mode(case, mode):
    branches = [1, 3, 8] if mode is Mode.CONTINUOUS_BATCHING else [3]
    report = verify(GOLDEN / case, [mode], branches)
    assert report.passed, [check.as_dict() for check in report.checks.values() if not check.passed]
    names = {name for _, name, _ in report.checks}
    with np.load(GOLDEN / case / 'expected.npz') as expected:
        assert set(expected.files) <= names  # every stored quantity is compared


def change_weights(folder, change):
    weights = load_file(folder / 'model.safetensors')
    change(weights)
    save_file(weights, folder / 'model.safetensors')


@pytest.mark.parametrize(('name', 'fails'), [
    ('dit.layers.1.middle_layernorm.weight', 'actions'), ('dit.layers.0.adaln_table', 'velocity'),
    ('vlm.model.visual.deepstack_merger_list.1.linear_fc2.bias', 'kv_keys'),
    ('vlm.model.language_model.layers.0.self_attn.k_norm.weight', 'kv_keys'),
    ('vlm.model.language_model.norm.weight', 'memory_logits')])
def test_a_weight_that_is_off_fails_where_it_matters(copy, name, fails):
    change_weights(copy, lambda weights: weights.update({name: weights[name] + 0.05}))
    report = verify(copy, [Mode.SHARED_KV], [3])
    assert fails in {check.name for check in report.checks.values() if not check.passed}


def test_missing_and_unknown_tensors_are_named_together(copy):
    change_weights(copy, lambda weights: weights.update({'dit.extra': weights.pop('sink.weight')}))
    with pytest.raises(ConfigError, match='1 missing: sink.weight; 1 unknown: dit.extra'):
        model(copy)


@pytest.fixture
def sharded(copy):
    """Return a checkpoint whose weights are in three files and an index, as the published ones are."""
    weights = load_file(copy / 'model.safetensors')
    (copy / 'model.safetensors').unlink()
    homes = {name: f'model-0000{i % 3 + 1}-of-00003.safetensors' for i, name in enumerate(weights)}
    for file in set(homes.values()):
        save_file({name: weights[name] for name in weights if homes[name] == file}, copy / file)
    (copy / 'model.safetensors.index.json').write_text(json.dumps({'weight_map': homes}))
    return copy


def test_weights_in_several_files_are_the_same_weights(sharded):
    one, several = (dict(model(folder).network.named_parameters()) for folder in (CASE, sharded))
    assert all(torch.equal(one[name], several[name]) for name in one)


def test_a_file_that_the_index_lists_and_nobody_copied_is_named(sharded):
    (sharded / 'model-00002-of-00003.safetensors').unlink()
    with pytest.raises(ConfigError, match='lacks files.*model-00002-of-00003'):
        model(sharded)


@pytest.mark.parametrize('text', ['', '[]', '{"weight_map": 3}', '{}'])
def test_an_index_that_is_broken_is_one_clear_line(sharded, text):
    (sharded / 'model.safetensors.index.json').write_text(text)
    with pytest.raises(ConfigError, match='index.json cannot be read') as error:
        model(sharded)
    assert '\n' not in str(error.value)


def test_a_case_says_nothing_about_bfloat16():
    with pytest.raises(ConfigError, match='says nothing about bfloat16'):
        verify(CASE, [Mode.SHARED_KV], [1], dtype='bfloat16')


def test_a_case_of_no_family_is_wrong_use(tmp_path):
    (tmp_path / 'case.json').write_text('{"robot": "G1"}')
    with pytest.raises(ConfigError, match='neither a robot_type .* nor a framework'):
        verify(tmp_path, [Mode.SHARED_KV], [1])


def test_no_checkpoint_and_an_unknown_robot_type_are_named():
    with pytest.raises(ConfigError, match='give a checkpoint'):
        model(None)
    with pytest.raises(ConfigError, match=r"'octopus'.*\['libero_all'\]"):
        model(robot_type='octopus')


def test_config_of_another_kind_is_refused(copy):
    (copy / 'config.json').write_text('{"model_type": "qwen3_vl"}')
    with pytest.raises(ConfigError, match="'qwen3_vl', not mibot"):
        model(copy)


def test_engine_makes_commands_for_the_robot_of_the_action_layout():
    xiaomi, robot = model(), load_robot('libero')
    task = ActionTask(robot, 'libero', xiaomi.spec)
    names = robot.layouts['libero'].state
    seen = Observation(1, 1, {'agentview': IMAGE, 'wrist': IMAGE}, names, np.linspace(-0.04, 0.04, len(names)))
    events = []
    engine = Engine(xiaomi, EngineConfig(), events.append, lambda: 0.0, lambda: 1)
    engine.set_instruction('open the drawer')
    engine.observe(task.policy_input(seen))
    engine.request_action(0.0)
    engine.run_cycle(lambda: True)
    [made] = [event for event in events if isinstance(event, ActionChunk)]
    chunk = task.joint_chunk(made)
    assert chunk.positions.shape == (10, 7) and chunk.names == robot.layouts['libero'].actions
    assert np.array_equal(chunk.positions, made.actions[:, :7])  # units of the checkpoint's statistics already


def test_the_state_reaches_the_actions_but_not_the_prefix():
    xiaomi = model()
    noise = torch.zeros(xiaomi.spec.horizon, xiaomi.spec.action_dim)
    one, other = (prefilled(xiaomi, policy_input(state=state)) for state in ((0.0, 0.0), (1.0, -1.0)))
    assert torch.equal(one.frame_k, other.frame_k)
    assert not torch.allclose(xiaomi.denoise(one, 0, noise, 2), xiaomi.denoise(other, 0, noise, 2))
    with pytest.raises(ValueError, match='a state of 13 numbers'):
        prefilled(xiaomi, policy_input(state=[0.0] * 13))


def test_denoising_leaves_the_cache_as_it_was():
    xiaomi = model()
    cache = prefilled(xiaomi)
    before = cache.frame_k.clone(), cache.frame_v.clone()
    xiaomi.denoise(cache, 0, torch.zeros(xiaomi.spec.horizon, xiaomi.spec.action_dim), 2)
    assert torch.equal(before[0], cache.frame_k) and torch.equal(before[1], cache.frame_v)


def text(xiaomi, inputs, instruction):
    decode = {number: token for token, number in xiaomi.tokenizer._model.get_vocab().items()}
    prefix = xiaomi.prefix(inputs, instruction)
    return ''.join(xiaomi.tokenizer.token_bytes(token).decode() or decode[token] for token in prefix.tokens)


@pytest.mark.parametrize('cameras', [('agentview', 'wrist'), ('wrist',), ()])
def test_views_of_absent_cameras_are_left_out_of_the_prompt(cameras):
    xiaomi = model()
    prompt = text(xiaomi, policy_input(cameras), 'open it')
    assert ('# Base View' in prompt, '# Left-Wrist View' in prompt) == ('agentview' in cameras, 'wrist' in cameras)
    assert prompt.endswith('task:\nOpen it. /no_cot<|im_end|>\n<|im_start|>assistant\n<cot></cot><|im_end|>\n')
    assert prompt.count('<|image_pad|>') == 4 * len(cameras)
    assert prefilled(xiaomi, policy_input(cameras)).frame_k.isfinite().all()


def test_a_long_instruction_and_large_pictures_are_cut_to_fit():
    xiaomi = model()
    large = Observation(1, 1, {name: np.zeros((720, 1280, 3), np.uint8) for name in xiaomi.spec.cameras})
    prefix = xiaomi.prefix(PolicyInput(large), 'very ' * 10000 + 'long')
    assert len(prefix.tokens) <= xiaomi.spec.prefix_tokens
    assert prefix.tokens[-1:] == xiaomi.tokenizer.encode('\n')
    with pytest.raises(ValueError, match='prompt_tokens 20 leaves no room'):
        model(prompt_tokens=20).prefix(policy_input(), 'go')


def test_texts_never_give_control_tokens_and_bytes_come_back():
    tokenizer = ByteTokenizer(CASE)
    for words in ('<|im_end|>\n<|im_start|>system', 'a<|image_pad|>b', 'naïve 🔍 \ud800 x'):
        tokens = tokenizer.encode(words)
        assert b''.join(map(tokenizer.token_bytes, tokens)) == words.encode('utf-8', 'replace')
    assert tokenizer.encode_markup('<|im_end|>') == [tokenizer.control('<|im_end|>')]
    assert tokenizer.token_bytes(tokenizer.control('<|im_end|>')) == b'' == tokenizer.token_bytes(10**6)
    with pytest.raises(ConfigError, match='no token <cot>'):
        tokenizer.control('<cot>')


def test_questions_are_turns_of_the_user():
    xiaomi = model()
    start, end = (xiaomi.tokenizer.control(f'<|im_{word}|>') for word in ('start', 'end'))
    prompt = xiaomi.branch_prompt('answer', 'What is <|im_end|>?')
    assert [token for token in prompt if token in (start, end)] == [start, end, start]


def test_positions_of_images_are_grids_and_text_goes_on_behind_the_longer_side():
    positions = prompt_positions([1, 9, 9, 9, 9, 9, 9, 1, 9, 1], 9, [(3, 2), (1, 1)])
    assert positions.tolist() == [[0, 1, 1, 1, 1, 1, 1, 4, 5, 6], [0, 1, 1, 2, 2, 3, 3, 4, 5, 6],
                                  [0, 1, 2, 1, 2, 1, 2, 4, 5, 6]]


def test_frequencies_of_the_three_axes_interleave():
    axes = QwenConfig(8, 1, 8, 2, 1, 128).axes()
    assert axes[:6] == [0, 1, 2, 0, 1, 2] and axes[60:] == [0, 0, 0, 0]
    assert [axes.count(axis) for axis in range(3)] == [24, 20, 20]
    with pytest.raises(ValueError, match='sections'):
        QwenConfig(8, 1, 8, 2, 1, 64)


def test_published_weights_cannot_continue_chunks():
    assert not hasattr(model(), 'longest_trained_delay')


def test_asynchronous_weights_keep_the_actions_that_are_fixed():
    xiaomi = model(asynchronous={'offset': 10, 'window': 4, 'longest_prefix': 6})
    assert xiaomi.longest_trained_delay == 6 and xiaomi.asynchrony == Asynchrony(10, 4)
    cache = prefilled(xiaomi)
    noise = torch.randn(xiaomi.spec.horizon, xiaomi.spec.action_dim, generator=torch.Generator().manual_seed(0))
    free = xiaomi.denoise(cache, 0, noise, 5)
    wanted = free + 0.1 * xiaomi.mask
    made = xiaomi.denoise(cache, 0, noise, 5, PreviousChunk(wanted, 8, 10, ChunkingMethod.TRAINED))
    varies = xiaomi.mask.bool()
    assert torch.allclose(made[:6][varies[:6]], wanted[:6][varies[:6]], atol=1e-5)
    assert not torch.allclose(made[6:], free[6:], atol=1e-3)


def test_units_of_actions_come_back():
    xiaomi = model()
    raw = torch.linspace(-1, 1, xiaomi.spec.horizon * xiaomi.spec.action_dim).view(xiaomi.spec.horizon, -1)
    assert torch.allclose(xiaomi.normalise(xiaomi.unnormalise(raw)), raw * xiaomi.mask, atol=1e-5)


def test_the_model_file_names_all_that_it_needs():
    content = yaml.safe_load(yaml.safe_dump(dict(read_model_file('xiaomi_robotics_0').content)))
    for key in ('robot_type', 'views', 'tasks', 'image_tokens', 'prompt_tokens', 'action_period', 'denoise_steps'):
        file = read_model_file('xiaomi_robotics_0')
        with pytest.raises(ConfigError, match=f"lacks the key '{key}'"):
            load_model(replace(file, content={k: v for k, v in content.items() if k != key}), LoadOptions(CASE))
