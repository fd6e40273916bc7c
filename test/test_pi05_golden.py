"""
The network against golden vectors of the peers that it follows: OxyGen's and LeRobot's π0.5, with small weights.

`data/golden/pi05/*` were made by running those implementations in float32.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache as memoize
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from engine_fakes import FakeClock
from safetensors.torch import load_file

from oxygen_ros.engine.config import EngineConfig
from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.kv_cache import CacheSpec, UnifiedKVCache
from oxygen_ros.engine.requests import FinishReason, SamplingParams, TextDelta, TextRequest
from oxygen_ros.models.gemma import GemmaConfig
from oxygen_ros.models.interface import ModelSpec, PolicyInput
from oxygen_ros.models.layers import time_embedding
from oxygen_ros.models.pi0_network import Pi0Config, Pi0Network
from oxygen_ros.models.siglip import VisionConfig
from oxygen_ros.observation import Observation

FOLDER = Path(__file__).parent / 'data' / 'golden' / 'pi05'
VARIANTS = ['a_mqa3cam', 'b_gqa_maskedcam']
CLOSE = {'rtol': 1e-4, 'atol': 1e-4}


def network_weights(given: dict[str, torch.Tensor], network: Pi0Network) -> dict[str, torch.Tensor]:
    """Return the state of a network from weights in openpi's naming."""
    given = {name.removeprefix('paligemma_with_expert.'): value.float() for name, value in given.items()}
    result = {}

    def copy(target: str, source: str, *parts: str) -> None:
        for part in parts:
            result[f'{target}.{part}'] = given[f'{source}.{part}']

    def join(target: str, sources: list[str], *parts: str) -> None:
        for part in parts:
            result[f'{target}.{part}'] = torch.cat([given[f'{source}.{part}'] for source in sources])

    both = ('weight', 'bias')
    vision = 'paligemma.model.vision_tower.vision_model'
    copy('vision.patch_embedding', f'{vision}.embeddings.patch_embedding', *both)
    result['vision.position_embedding'] = given[f'{vision}.embeddings.position_embedding.weight']
    for i in range(len(network.vision.layers)):
        source, target = f'{vision}.encoder.layers.{i}', f'vision.layers.{i}'
        for here, there in (('norm1', 'layer_norm1'), ('norm2', 'layer_norm2'), ('out', 'self_attn.out_proj'),
                            ('fc1', 'mlp.fc1'), ('fc2', 'mlp.fc2')):
            copy(f'{target}.{here}', f'{source}.{there}', *both)
        join(f'{target}.qkv', [f'{source}.self_attn.{x}_proj' for x in 'qkv'], *both)
    copy('vision.post_norm', f'{vision}.post_layernorm', *both)
    copy('vision.projector', 'paligemma.model.multi_modal_projector.linear', *both)

    copy('decoder.embedding', 'paligemma.lm_head', 'weight')
    for name, stem in (('decoder', 'paligemma.model.language_model'), ('expert', 'gemma_expert.model')):
        for i in range(len(network.decoder.layers)):
            source, target = f'{stem}.layers.{i}', f'{name}.layers.{i}'
            join(f'{target}.qkv', [f'{source}.self_attn.{x}_proj' for x in 'qkv'], 'weight')
            copy(f'{target}.out', f'{source}.self_attn.o_proj', 'weight')
            join(f'{target}.gate_up', [f'{source}.mlp.{x}_proj' for x in ('gate', 'up')], 'weight')
            copy(f'{target}.down', f'{source}.mlp.down_proj', 'weight')
            for number, norm in ((1, 'input_layernorm'), (2, 'post_attention_layernorm')):
                if name == 'expert':
                    copy(f'{target}.modulation{number}', f'{source}.{norm}.dense', *both)
                else:
                    result[f'{target}.norm{number}'] = 1 + given[f'{source}.{norm}.weight']
    result['decoder.norm'] = 1 + given['paligemma.model.language_model.norm.weight']
    copy('expert.norm_modulation', 'gemma_expert.model.norm.dense', *both)
    for here, there in (('action_in', 'action_in_proj'), ('action_out', 'action_out_proj'), ('time_in', 'time_mlp_in'),
                        ('time_out', 'time_mlp_out')):
        copy(f'expert.{here}', there, *both)
    return result


def network_config(sizes: dict) -> Pi0Config:
    def gemma(part: dict) -> GemmaConfig:
        return GemmaConfig(part['width'], part['depth'], part['mlp_dim'], part['num_heads'], part['num_kv_heads'],
                           part['head_dim'])

    vision = sizes['vision']
    return Pi0Config(VisionConfig(vision['image_size'], vision['patch_size'], vision['hidden_size'],
                                  vision['num_hidden_layers'], vision['num_attention_heads'],
                                  vision['intermediate_size']),
                     gemma(sizes['text']), gemma(sizes['expert']), sizes['vocab_size'], sizes['action_horizon'],
                     sizes['action_dim'], sizes['prefix_len'] + 64)


@memoize
def load(variant: str) -> SimpleNamespace:
    folder = FOLDER / variant
    sizes = json.loads((folder / 'config.json').read_text())
    config = network_config(sizes)
    network = Pi0Network(config).eval()
    network.load_state_dict(network_weights(load_file(folder / 'model.safetensors'), network))
    files = {name: load_file(folder / f'{name}.safetensors')
             for name in ('inputs', 'expected_oxygen', 'expected_lerobot')}
    expected = {name.removeprefix('bidirectional.'): value for name, value in files['expected_oxygen'].items()
                if name.startswith('bidirectional.')}
    return SimpleNamespace(sizes=sizes, config=config, network=network, inputs=files['inputs'], expected=expected,
                           common=files['expected_oxygen'], lerobot=files['expected_lerobot'])


@pytest.fixture(params=VARIANTS)
def golden(request):
    with torch.inference_mode():
        yield load(request.param)


def pixels_and_tokens(golden, row):
    seen = golden.inputs['image_mask'][:, row]
    pixels = golden.inputs['images_u8'][:, row][seen].float() / 255 * 2 - 1
    return pixels, golden.inputs['tokens'][row][golden.inputs['token_mask'][row]]


def prefilled(golden, branches=1):
    """Return a cache with every row of the batch in a frame of its own, and their slots."""
    config = golden.config
    spec = CacheSpec(config.decoder.depth, config.decoder.kv_heads, config.decoder.head_dim, golden.sizes['prefix_len'],
                     config.horizon, 32, golden.sizes['batch'] + 1, branches, extras=config.frame_extras(torch.float32))
    cache = UnifiedKVCache(spec)
    frames = [cache.acquire_frame(row) for row in range(golden.sizes['batch'])]
    for row, frame in enumerate(frames):
        golden.network.prefill(*pixels_and_tokens(golden, row), cache, frame)
    return cache, frames


def test_image_embeddings(golden):
    for row in range(golden.sizes['batch']):
        pixels, _ = pixels_and_tokens(golden, row)
        seen = golden.inputs['image_mask'][:, row]
        expected = golden.common['common.image_embeds'][row].unflatten(0, (len(seen), -1))[seen]
        torch.testing.assert_close(golden.network.vision(pixels), expected, **CLOSE)


def test_time_embedding(golden):
    for t, expected in zip((1.0, 0.5, 0.1), golden.common['common.time_sincos']):
        torch.testing.assert_close(time_embedding(t, golden.config.expert.width), expected, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(golden.network.expert.condition(t),
                                   golden.expected[f'adarms_cond.t{t}'][0], **CLOSE)


def test_keys_and_values_of_the_prefix_without_masked_cameras_and_padding(golden):
    cache, frames = prefilled(golden)
    layers = [i for i in range(golden.config.decoder.depth) if f'prefix_k.{i}' in golden.expected]
    assert layers[0] == 0 and layers[-1] == golden.config.decoder.depth - 1
    for row, frame in enumerate(frames):
        valid = golden.expected['prefix_mask'][row]
        length = cache.frames[frame].length
        assert length == int(valid.sum()) == cache.frames[frame].next_position
        for layer in layers:
            for ours, name in ((cache.frame_k, 'prefix_k'), (cache.frame_v, 'prefix_v')):
                for peer in (golden.expected, golden.lerobot):
                    torch.testing.assert_close(ours[layer, frame, :, :length],
                                               peer[f'{name}.{layer}'][row][:, valid], **CLOSE)


def test_velocity(golden):
    cache, frames = prefilled(golden)
    expert = golden.network.expert
    for row, frame in enumerate(frames):
        for t in (1.0, 0.5, 0.1):
            velocity = expert.velocity(golden.inputs['noise'][row], expert.modulation(t), cache, frame)
            torch.testing.assert_close(velocity, golden.expected[f'velocity.t{t}'][row], **CLOSE)


def test_actions(golden):
    cache, frames = prefilled(golden)
    for row, frame in enumerate(frames):
        for steps in (10, 5):
            actions = golden.network.expert.denoise(golden.inputs['noise'][row], cache, frame, steps)
            name = f'actions.n{steps}'
            torch.testing.assert_close(actions, golden.lerobot[name][row], rtol=0, atol=5e-4)
            torch.testing.assert_close(actions, golden.expected[name][row], rtol=0, atol=1e-3)


def test_text_log_probabilities_with_ragged_prompts_and_holes(golden):
    """Branches of several lengths on both frames in one batch; what is fed is the text that the peer generated."""
    cache, frames = prefilled(golden, branches=5)
    rows, lengths = (0, 1, 0, 1, 0), (7, 3, 12, 1, 5)
    slots = [cache.open_branch(frames[row]) for row in rows]
    fed = [golden.expected['text_tokens'][row].tolist() for row in rows]

    def check(logits, members, counts):
        for got, member, count in zip(logits, members, counts):
            torch.testing.assert_close(got.log_softmax(-1), golden.expected['text_logprobs'][rows[member], count],
                                       rtol=0, atol=1e-3)

    for row, frame in enumerate(frames):
        torch.testing.assert_close(golden.network.prefix_logits(cache, frame),
                                   golden.expected['text_seed_logits'][row], **CLOSE)
    extend = golden.network.decoder.extend
    check(extend(cache, slots, [tokens[:n] for tokens, n in zip(fed, lengths)]), range(5), lengths)
    cache.close_branch(slots[1])
    cache.close_branch(slots[2])
    rest = (0, 3, 4)
    check(extend(cache, [slots[i] for i in rest], [[fed[i][lengths[i]]] for i in rest]), rest,
          [lengths[i] + 1 for i in rest])


class GoldenModel:
    """The golden network behind the engine: frame n is row n - 1, texts have no prompt, a token reads as its number."""

    def __init__(self, golden, stop=()):
        self._golden, self.tokenizer = golden, self
        config = golden.config
        self.batches = []
        self.spec = ModelSpec(
            name='golden', weights='golden', random_weights=False, layers=config.decoder.depth,
            kv_heads=config.decoder.kv_heads, head_dim=config.decoder.head_dim, vocabulary=config.vocabulary,
            prefix_tokens=golden.sizes['prefix_len'], branch_tokens=64, horizon=config.horizon,
            action_dim=config.action_dim, action_period=0.1, cameras=(), denoise_steps=10, stop_tokens=frozenset(stop),
            frame_extras=config.frame_extras(torch.float32))

    def token_bytes(self, token):
        return f'{token},'.encode()

    def prefill(self, inputs, instruction, cache, frame):
        self._golden.network.prefill(*pixels_and_tokens(self._golden, inputs.number - 1), cache, frame)

    def denoise(self, cache, frame, noise, steps):
        return self._golden.network.expert.denoise(noise, cache, frame, steps)

    def prefix_logits(self, cache, frame):
        return self._golden.network.prefix_logits(cache, frame)

    def extend(self, cache, slots, tokens):
        self.batches.append([cache.branches[slot].frame for slot in slots])
        return self._golden.network.decoder.extend(cache, slots, tokens)

    def branch_prompt(self, task, text):
        return []


def test_text_tokens_of_several_branches_and_frames_in_one_batch_of_the_engine(golden):
    model, events = GoldenModel(golden), []
    clock = FakeClock()
    config = EngineConfig(max_branches=6, branch_tokens=64)
    engine = Engine(model, config, events.append, clock, lambda: int(clock() * 1e9))
    lengths = {}
    for number in (1, 2):
        engine.observe(PolicyInput(Observation(number, int(clock() * 1e9), {})))
        engine.request_action(clock())
        engine.run_cycle()
        for i, length in enumerate((16, 5 + number, 11)):
            request_id = 10 * number + i
            lengths[request_id] = length
            engine.submit(TextRequest(request_id, 'speech', '', SamplingParams(length), priority=0))
        engine.run_cycle()  # starts them
        engine.run_cycle(lambda: True)  # one decode step, then the next frame comes
    while engine.run_cycle() is None:
        engine.check_integrity()
    spoken: dict[int, str] = {}
    for event in events:
        if isinstance(event, TextDelta):
            spoken[event.request.request_id] = spoken.get(event.request.request_id, '') + event.delta
    assert max(len(batch) for batch in model.batches) == 6 and max(len(set(batch)) for batch in model.batches) == 2
    for request_id, length in lengths.items():
        tokens = golden.expected['text_tokens'][request_id // 10 - 1][:length].tolist()
        assert spoken[request_id] == ''.join(f'{token},' for token in tokens)


def test_text_ends_at_the_end_token(golden):
    test = golden.sizes['eos_test']
    assert (test['mode'], test['row']) == ('bidirectional', 0)
    events = []
    engine = Engine(GoldenModel(golden, [test['eos_token_id']]), EngineConfig(max_branches=2, branch_tokens=64),
                    events.append, FakeClock(), lambda: 0)
    engine.observe(PolicyInput(Observation(1, 0, {})))
    engine.submit(TextRequest(1, 'speech', sampling=SamplingParams(16)))
    while engine.run_cycle() is None:
        pass
    assert events[-1].finish is FinishReason.STOP
    emitted = ''.join(event.delta for event in events).split(',')[:-1]
    assert [*map(int, emitted), test['eos_token_id']] == test['emitted_tokens_including_eos']


def test_decoder_and_expert_must_fit_each_other(golden):
    wrong = replace(golden.config.expert, depth=golden.config.expert.depth + 1)
    with pytest.raises(ValueError, match='depth'):
        replace(golden.config, expert=wrong)


def test_bfloat16_stays_close(golden):
    """As the peers' own bfloat16 mode: about 0.5 % off."""
    network = Pi0Network(golden.config).eval()
    network.load_state_dict(golden.network.state_dict())
    network.to(torch.bfloat16)
    config = golden.config
    spec = CacheSpec(config.decoder.depth, config.decoder.kv_heads, config.decoder.head_dim, golden.sizes['prefix_len'],
                     config.horizon, 32, 2, 1, torch.bfloat16, extras=config.frame_extras(torch.bfloat16))
    cache = UnifiedKVCache(spec)
    frame = cache.acquire_frame(0)
    pixels, tokens = pixels_and_tokens(golden, 0)
    network.prefill(pixels.bfloat16(), tokens, cache, frame)
    actions = network.expert.denoise(golden.inputs['noise'][0], cache, frame, 10)
    expected = golden.lerobot['actions.n10'][0]
    assert actions.dtype == torch.float32
    assert float((actions - expected).norm() / expected.norm()) < 0.02
    assert np.isfinite(network.prefix_logits(cache, frame).numpy()).all()
