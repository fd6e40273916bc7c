"""The pi05 adapter: directories of both formats, prompts, pictures, tasks, statistics, refusals."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from oxygen_ros.engine.config import EngineConfig
from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.engine.requests import ActionChunk, AdmissionError, Refusal, TextRequest
from oxygen_ros.errors import ConfigError
from oxygen_ros.files import config_file, config_names
from oxygen_ros.models.checkpoints import load_strict
from oxygen_ros.models.interface import PolicyInput
from oxygen_ros.models.pi0_network import Pi0Network
from oxygen_ros.models.pi05 import Pi05Model
from oxygen_ros.models.pi05_config import VARIANTS, network_config
from oxygen_ros.models.pi05_prompt import PromptEncoder, state_bins
from oxygen_ros.models.pi05_weights import UNUSED, dtype_rule, sources
from oxygen_ros.models.registry import LoadOptions, load_model, read_model_file
from oxygen_ros.models.tokenizer import WordTokenizer
from oxygen_ros.observation import Observation
from oxygen_ros.robot.joints import Joint
from oxygen_ros.robot.layout import ActionMode, Layout
from oxygen_ros.robot.robot_file import Robot
from oxygen_ros.tasks.action import ActionTask
from oxygen_ros.tasks.session import Session, SessionSettings
from oxygen_ros.verify.case import read_case

GOLDEN = Path(__file__).parent / 'data' / 'golden' / 'pi05' / 'b_gqa_maskedcam'
STATS = Path(__file__).parent / 'data' / 'golden' / 'pi05' / 'preprocess' / 'norm_stats.json'
JOINTS = tuple('abcdefgh')


def content(**changes):
    """Return the content of a model file for the small golden weights."""
    prompt = 'Task: {text}, State: {state};\nAction: '
    sizes = read_case(GOLDEN).model_file()
    del sizes['resize']
    return {**sizes, 'family': 'pi05', 'layout': 'joints', 'prompt': prompt,
            'prompt_tokens': 80, 'bos': [2], 'stop_tokens': [1], 'text_head_trained': False,
            'tasks': {'speech': '', 'answer': 'Q {text} A', 'memory': 'Note '}, **changes}


def tokenizer_file(folder):
    """Write a tokenizer.json that spells bytes."""
    vocabulary = {'<pad>': 0, '<eos>': 1, '<bos>': 2, '<unk>': 3, **{f'<0x{b:02X}>': b + 4 for b in range(256)}}
    (folder / 'tokenizer.json').write_text(json.dumps({
        'version': '1.0', 'truncation': None, 'padding': None, 'normalizer': None, 'pre_tokenizer': None,
        'post_processor': None, 'decoder': None, 'added_tokens': [
            {'id': i, 'content': name, 'single_word': False, 'lstrip': False, 'rstrip': False, 'normalized': False,
             'special': True} for name, i in list(vocabulary.items())[:4]],
        'model': {'type': 'BPE', 'dropout': None, 'unk_token': '<unk>', 'continuing_subword_prefix': None,
                  'end_of_word_suffix': None, 'fuse_unk': False, 'byte_fallback': True, 'vocab': vocabulary,
                  'merges': []}}))


@pytest.fixture
def openpi(tmp_path):
    """Return a directory as openpi's converter leaves it, with small weights."""
    path = tmp_path / 'openpi'
    (path / 'assets' / 'lab' / 'robot').mkdir(parents=True)
    shutil.copy(GOLDEN / 'model.safetensors', path)
    shutil.copy(STATS, path / 'assets' / 'lab' / 'robot')
    (path / 'config.json').write_text(json.dumps(
        {'action_dim': 32, 'action_horizon': 7, 'paligemma_variant': 'dummy', 'precision': 'bfloat16'}))
    tokenizer_file(path)
    return path


@pytest.fixture
def lerobot(tmp_path):
    """Return a directory as LeRobot saves it, with small weights."""
    path = tmp_path / 'lerobot'
    path.mkdir()
    shutil.copy(GOLDEN / 'model.lerobot.safetensors', path / 'model.safetensors')
    (path / 'config.json').write_text(json.dumps(
        {'type': 'pi05', 'chunk_size': 7, 'max_action_dim': 32, 'image_resolution': [42, 42], 'min_period': 4e-3}))
    stats = json.loads(STATS.read_text())['norm_stats']
    tensors = {f'{feature}.{name}': torch.tensor(values) for feature, key in (('observation.state', 'state'),
                                                                            ('action', 'actions'))
               for name, values in stats[key].items()}
    save_file(tensors, path / 'policy_preprocessor_step_3_normalizer_processor.safetensors')
    modes = {'VISUAL': 'IDENTITY', 'STATE': 'QUANTILES', 'ACTION': 'QUANTILES'}
    (path / 'policy_preprocessor.json').write_text(json.dumps({'name': 'policy_preprocessor', 'steps': [
        {'registry_name': 'rename_observations_processor', 'config': {}},
        {'registry_name': 'normalizer_processor', 'config': {'eps': 1e-8, 'norm_map': modes},
         'state_file': 'policy_preprocessor_step_3_normalizer_processor.safetensors'}]}))
    tokenizer_file(path)
    return path


def load(folder, tmp_path, dtype=torch.float32, **changes):
    path = tmp_path / 'small.yaml'
    path.write_text(yaml.safe_dump(content(**changes)))
    return load_model(read_model_file(str(path)), LoadOptions(folder, dtype))


def robot(mode=ActionMode.ABSOLUTE, absolute=()):
    joints = tuple(Joint(name, -3.0, 3.0, 1.0, 0.0) for name in JOINTS)
    cameras = {name: f'/{name}' for name in read_case(GOLDEN).config['cameras']}
    return Robot('lab', joints, {'joints': Layout(JOINTS, JOINTS, mode, absolute=absolute)}, cameras)


def observation(seed=0):
    rng = np.random.default_rng(seed)
    images = {name: rng.integers(0, 256, (60, 80, 3), dtype=np.uint8)
              for name in ('base_0_rgb', 'left_wrist_0_rgb')}
    return Observation(1, 1, images, JOINTS, rng.normal(size=len(JOINTS)))


def test_both_formats_give_the_same_actions(openpi, lerobot, tmp_path):
    actions = []
    for model in (load(openpi, tmp_path), load(lerobot, tmp_path, resize='pillow')):
        cache = UnifiedKVCache(model.spec.cache_spec(2, 1, 8))
        frame = cache.acquire_frame(0)
        model.prefill(PolicyInput(observation(), np.zeros(8)), 'go', cache, frame)
        actions.append(model.denoise(cache, frame, torch.ones(7, 32), 4))
    assert torch.equal(*actions)


def test_lerobot_pictures_are_resized_its_own_way(openpi, lerobot, tmp_path):
    images = observation().images
    pixels = [load(folder, tmp_path).pixels(images) for folder in (openpi, lerobot)]
    assert (pixels[0] - pixels[1]).abs().max() > 0.1  # noise: averaged, and not


def test_an_openpi_directory_brings_its_statistics(openpi, tmp_path):
    model = load(openpi, tmp_path)
    task = ActionTask(robot(), 'joints', model.spec)
    stats = json.loads(STATS.read_text())['norm_stats']
    low, high = np.array(stats['state']['q01']), np.array(stats['state']['q99'])
    varies = high > low
    got = task.layout.encode_state(JOINTS, (low + high) / 2)
    assert got[varies] == pytest.approx(np.zeros(varies.sum()), abs=1e-5)
    assert task.layout.encode_state(JOINTS, low)[varies] == pytest.approx(-np.ones(varies.sum()))
    assert task.layout.epsilon == 1e-6


def test_a_lerobot_directory_brings_its_own_kind_of_statistics(lerobot, tmp_path):
    model = load(lerobot, tmp_path)
    layout = ActionTask(robot(), 'joints', model.spec).layout
    stats = json.loads(STATS.read_text())['norm_stats']['actions']
    assert layout.epsilon == 0.0
    assert layout.action_statistics.offset == pytest.approx(np.array(stats['q01']), rel=1e-6)


def test_statistics_for_another_robot_are_refused(openpi, tmp_path):
    spec = load(openpi, tmp_path).spec
    few = Robot('few', robot().joints[:3], {'joints': Layout(JOINTS[:3], JOINTS[:3])}, robot().cameras)
    with pytest.raises(ConfigError, match='norm_stats.json: state.*8 numbers, but 3 are needed'):
        ActionTask(few, 'joints', spec)


def test_statistics_must_be_there_unless_the_robot_has_them(openpi, tmp_path):
    shutil.rmtree(openpi / 'assets')
    with pytest.raises(ConfigError, match='no statistics'):
        load(openpi, tmp_path)
    assert load(openpi, tmp_path, statistics='robot').spec.statistics is None


def test_one_of_several_assets_must_be_chosen(openpi, tmp_path):
    shutil.copytree(openpi / 'assets' / 'lab', openpi / 'assets' / 'home')
    with pytest.raises(ConfigError, match=r"'home/robot', 'lab/robot'.*`asset`"):
        load(openpi, tmp_path)
    assert 'home' in load(openpi, tmp_path, asset='home/robot').spec.statistics.where
    with pytest.raises(ConfigError, match='no assets/moon'):
        load(openpi, tmp_path, asset='moon')


@pytest.mark.parametrize(('key', 'value'), [('action_horizon', 50), ('action_dim', 16), ('type', 'pi0'),
                                            ('image_resolution', [224, 224]), ('use_visual_memory', True)])
def test_a_checkpoint_that_contradicts_the_model_file_is_refused(openpi, tmp_path, key, value):
    (openpi / 'config.json').write_text(json.dumps({key: value}))
    with pytest.raises(ConfigError, match=f'{key}|type|visual memory'):
        load(openpi, tmp_path)


def test_a_pi0_file_is_refused_by_name(openpi, tmp_path):
    weights = load_file(openpi / 'model.safetensors')
    weights['state_proj.weight'] = torch.zeros(40, 32)
    save_file(weights, openpi / 'model.safetensors')
    with pytest.raises(ConfigError, match='is of π0, not of π0.5.*state_proj.weight'):
        load(openpi, tmp_path)


def test_a_checkpoint_without_tokenizer_says_what_to_copy(openpi, tmp_path):
    (openpi / 'tokenizer.json').unlink()
    with pytest.raises(ConfigError, match='no tokenizer.*paligemma_tokenizer.model'):
        load(openpi, tmp_path)


def test_a_model_over_its_memory_budget_is_refused_before_loading(openpi, tmp_path):
    path = tmp_path / 'small.yaml'
    path.write_text(yaml.safe_dump(content()))
    (openpi / 'model.safetensors').write_bytes(b'never read')
    with pytest.raises(ConfigError, match='need .* GiB in float32'):
        load_model(read_model_file(str(path)), LoadOptions(openpi, memory_budget_mib=0.5))


def test_bfloat16_keeps_what_openpi_keeps_in_float32(openpi, tmp_path):
    network = load(openpi, tmp_path, torch.bfloat16).network
    kept = {name for name, parameter in network.named_parameters() if parameter.dtype is torch.float32}
    assert {'vision.patch_embedding.bias', 'vision.position_embedding', 'decoder.norm', 'decoder.layers.1.norm2',
            'expert.layers.0.modulation1.weight', 'expert.norm_modulation.bias', 'expert.action_in.weight',
            'expert.time_out.bias'} <= kept
    assert not kept & {'vision.layers.0.norm1.weight', 'vision.post_norm.weight', 'vision.projector.weight',
                       'decoder.embedding.weight', 'decoder.layers.0.qkv.weight', 'expert.layers.0.down.weight'}


def test_the_public_checkpoint_has_exactly_the_tensors_that_are_asked_for():
    """Names and shapes of full-size π0.5 as section 2 of the reference lists them: counts and total."""
    config = network_config(yaml.safe_load(config_file('models', 'pi05_base').read_text()))
    with torch.device('meta'):
        network = Pi0Network(config)
    table = sources(config)
    assert table.keys() == dict(network.named_parameters()).keys()
    names = {name for source in table.values() for name in (*source.names, *source.instead)} | set(UNUSED)
    assert len(names) == 813
    unused = 257152 * 1024 + 257152 * 2048  # the expert's head, and the tied one
    assert sum(parameter.numel() for parameter in network.parameters()) + unused == 4_143_404_816


def test_every_shipped_model_file_is_complete():
    for name in config_names('models'):
        if name.startswith('pi05'):
            file = read_model_file(name)
            assert network_config(file.content).decoder == VARIANTS['gemma_2b']
            assert {'bos', 'stop_tokens', 'tasks', 'prompt', 'text_head_trained', 'cameras', 'action_period',
                    'denoise_steps'} <= file.content.keys()
            assert file.content['text_head_trained'] is False


def test_an_untrained_text_head_is_told_by_the_spec(openpi, tmp_path):
    assert not load(openpi, tmp_path).spec.text_head_trained
    assert load(openpi, tmp_path, text_head_trained=True).spec.text_head_trained
    assert load(None, tmp_path).spec.text_head_trained  # random weights: marked as such already


def test_a_model_that_was_never_trained_to_speak_refuses_texts_and_still_acts(openpi, tmp_path):
    events = []
    engine = Engine(load(openpi, tmp_path), EngineConfig(), events.append, observation_clock=lambda: 1)
    with pytest.raises(AdmissionError, match='never trained to speak') as refused:
        engine.submit(TextRequest(1, 'answer', 'what do you see?'))
    assert refused.value.refusal is Refusal.NO_TEXT_HEAD
    engine.observe(PolicyInput(observation(), np.zeros(8)))
    engine.request_action(engine.clock())
    engine.run_cycle()
    assert isinstance(events[0], ActionChunk) and np.isfinite(events[0].actions).all()


def test_training_for_real_time_chunking_is_told_by_the_checkpoint(lerobot, tmp_path):
    assert load(lerobot, tmp_path).longest_trained_delay == 0
    config = json.loads((lerobot / 'config.json').read_text())
    (lerobot / 'config.json').write_text(json.dumps(config | {'rtc_training_max_delay': 4}))
    assert load(lerobot, tmp_path).longest_trained_delay == 4
    assert load(None, tmp_path).longest_trained_delay == 0


def test_random_weights_depend_on_the_seed_alone(tmp_path):
    path = tmp_path / 'small.yaml'
    path.write_text(yaml.safe_dump(content()))
    first, again, other = (load_model(read_model_file(str(path)), LoadOptions(seed=seed)) for seed in (1, 1, 2))
    weight = 'expert.layers.0.qkv.weight'
    values = [model.network.get_parameter(weight) for model in (first, again, other)]
    assert torch.equal(values[0], values[1]) and not torch.equal(values[0], values[2])
    assert first.spec.random_weights and first.spec.weights == 'random, seed 1'


def test_missing_cameras_are_left_out(openpi, tmp_path):
    model = load(openpi, tmp_path)
    assert model.pixels({}).shape == (0, 3, 42, 42)
    assert model.pixels(observation().images).shape == (2, 3, 42, 42)
    black = model.pixels({'base_0_rgb': np.zeros((84, 42, 3), np.uint8)})
    assert torch.equal(black, torch.full_like(black, -1))


def test_task_prompts_are_data_and_never_control_tokens(openpi, tmp_path):
    model = load(openpi, tmp_path)
    assert model.branch_prompt('speech', '') == []
    assert bytes(t - 4 for t in model.branch_prompt('answer', 'a <eos>{text}')) == b'Q a <eos>{text} A'
    assert 1 not in model.spec.suppressed_tokens and {0, 2, 3, 767} <= set(model.spec.suppressed_tokens)


@pytest.mark.parametrize('key', ['prefix_mask', 'resize', 'statistics'])
def test_unknown_choices_are_named(tmp_path, key):
    with pytest.raises(ConfigError, match=f"{key} is 'x': choose"):
        load(None, tmp_path, **{key: 'x'})


def test_unknown_variants_are_named(tmp_path):
    with pytest.raises(ConfigError, match="unknown variant 'gemma_9b'"):
        load(None, tmp_path, decoder='gemma_9b')


def test_a_session_acts_with_a_checkpoint_in_the_units_of_its_statistics(openpi, tmp_path):
    (tmp_path / 'small.yaml').write_text(yaml.safe_dump(content()))
    joints = [{'name': name, 'lower': -3.0, 'upper': 3.0, 'velocity': 1.0, 'default': 0.1} for name in JOINTS]
    layout = {'state': 'all', 'actions': 'all', 'action_mode': 'absolute', 'state_statistics': 'none',
              'action_statistics': 'none'}
    cameras = {name: f'/{name}' for name in content()['cameras']}
    (tmp_path / 'robot.yaml').write_text(yaml.safe_dump(
        {'name': 'lab', 'joints': joints, 'cameras': cameras, 'layouts': {'joints': layout}}))
    events = []
    session = Session(SessionSettings(model=str(tmp_path / 'small.yaml'), robot=str(tmp_path / 'robot.yaml'),
                                      checkpoint=str(openpi)), events.append, observation_clock=lambda: 1)
    session.engine.observe(session.action.policy_input(observation()))
    session.engine.request_action(session.engine.clock())
    session.engine.run_cycle()
    positions = session.action.joint_chunk(events[0]).positions
    stats = json.loads(STATS.read_text())['norm_stats']['actions']
    low, high = np.array(stats['q01']), np.array(stats['q99'])
    expected = (events[0].actions[:, :8] + 1) / 2 * (high - low + 1e-6 * (high > low)) + low
    assert positions == pytest.approx(expected, abs=1e-6)


# -- prompts ---------------------------------------------------------------------------------------------------------

class Letters(WordTokenizer):
    """Bytes without the blank in front."""

    def __init__(self) -> None:
        super().__init__([], [])

    def encode(self, text):
        return list(text.encode())


def prompt(template, limit=100):
    return PromptEncoder(Letters(), template, limit)


def text(tokens):
    return bytes(tokens).decode()


STATE = np.array([-1.5, -1.0, 0.0, 0.999, 7.0])


def test_state_bins_follow_the_reference_at_the_edges():
    assert state_bins(STATE).tolist() == [-1, 0, 128, 255, 255]


def test_the_prompt_tells_instruction_and_state():
    encoder = prompt('Task: {text}, State: {state};\nAction: ')
    assert text(encoder.encode(' Pick_up the\ncup ', STATE)) == (
        'Task: Pick up the cup, State: -1 0 128 255 255;\nAction: ')
    assert encoder.has_state and not prompt('{text}\n').has_state


def test_the_command_form_is_lower_case_without_the_final_mark():
    assert text(prompt('Task: {command}. Subtask: ').encode('Wave Now!', STATE)) == 'Task: wave now. Subtask: '


def test_an_instruction_cannot_fill_in_fields():
    assert text(prompt('{text}|{state}').encode('say {state} {text}', np.zeros(1))) == 'say {state} {text}|128'


def test_a_long_instruction_is_cut_and_the_state_stays(caplog):
    encoder = prompt('{text}|{state}', limit=10)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert text(encoder.encode('x' * 5000, np.zeros(1))) == 'xxxxxx|128'
    assert len(caplog.records) == 1  # said once, not every frame


def test_a_state_that_leaves_no_room_is_refused():
    with pytest.raises(ConfigError, match='state of 5 numbers.*prompt_tokens'):
        prompt('{text}|{state}', limit=10).encode('go', STATE)


def test_tokens_in_front_count():
    assert PromptEncoder(Letters(), '{text}', 3, [9]).encode('abc', np.zeros(0)) == [9, *b'ab']


def test_loading_by_names_needs_every_tensor(openpi):
    config = network_config(content())
    weights = load_file(openpi / 'model.safetensors')
    for name in ('action_in_proj.weight', 'time_mlp_in.bias'):
        del weights[name]
    save_file(weights, openpi / 'model.safetensors')
    with torch.device('meta'):
        network = Pi0Network(config)
    with pytest.raises(ConfigError, match='2 missing: action_in_proj.weight, time_mlp_in.bias'):
        load_strict(network, openpi, sources(config), unused=UNUSED, dtype=dtype_rule(torch.float32))


def test_the_adapter_is_what_the_engine_expects(openpi, tmp_path):
    model = load(openpi, tmp_path)
    assert isinstance(model, Pi05Model) and model.spec.name == 'b_gqa_maskedcam'
    assert model.spec.prefix_tokens == 3 * 9 + 80 and model.spec.cameras[0] == 'base_0_rgb'
