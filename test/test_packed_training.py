"""The packed training forward gives what the engine gives, or all training would be in vain."""

import numpy as np
import pytest
import torch
from small_policy import SIZES, small_config

from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.models.initialise import initialise
from oxygen_ros.models.interface import PolicyInput
from oxygen_ros.models.pi0_network import Pi0Network
from oxygen_ros.models.registry import LoadOptions
from oxygen_ros.models.tiny import TinyModel
from oxygen_ros.observation import Observation
from oxygen_ros.training.packed import NO_TARGET, PackedBatch, PackedForward

CAMERAS = ('head', 'left', 'right')
LENGTH, SAMPLES = 40, 2


@pytest.fixture(scope='module')
def model():
    sizes = {name: {**SIZES[name], 'kv_heads': 1} for name in ('decoder', 'expert')}
    return TinyModel(small_config(**sizes, cameras=list(CAMERAS), prefix_mask='causal_language'), LoadOptions(seed=3))


def frames(present):
    """Return two observations without the cameras that are not present, and their states."""
    random = np.random.default_rng(5)
    for number, shown in enumerate(present):
        images = {name: random.integers(0, 256, (28, 28, 3), dtype=np.uint8) for name in CAMERAS}
        given = {name: image for name, image in images.items() if shown[CAMERAS.index(name)]}
        yield images, PolicyInput(Observation(number + 1, 0, given), random.uniform(-1, 1, 3))


def pack(model, inputs, rows):
    """Return a batch: for each frame one row per (instruction, branches as token lists)."""
    shape = (len(inputs), len(rows), LENGTH)
    tokens, segments, places = np.zeros(shape, int), np.full(shape, -1), np.zeros(shape, int)
    for b, (_, seen) in enumerate(inputs):
        for k, (instruction, branches) in enumerate(rows):
            start = 0
            for number, part in enumerate([model.prefix_tokens(instruction, seen.state), *branches]):
                span = np.s_[b, k, start:start + len(part)]
                tokens[span], segments[span], places[span] = part, number, np.arange(len(part))
                start += len(part)
    present = np.array([[name in seen.observation.images for name in CAMERAS] for _, seen in inputs])
    pixels = np.stack([np.stack([images[name] for name in CAMERAS]) for images, _ in inputs])
    generator = torch.Generator().manual_seed(1)
    actions = torch.randn((*shape[:2], model.spec.horizon, model.spec.action_dim), generator=generator)
    noise = torch.randn((*shape[:2], SAMPLES, *actions.shape[2:]), generator=generator)
    times = torch.rand((*shape[:2], SAMPLES), generator=generator)
    return PackedBatch(*map(torch.from_numpy, (pixels, present, tokens, segments, places)),
                       torch.full(shape, NO_TARGET), torch.ones(shape), actions, torch.ones(shape[:2]), noise, times)


@pytest.mark.parametrize('present', [[(1, 1, 1), (1, 1, 1)], [(0, 1, 1), (1, 0, 0)]])
def test_packed_forward_gives_the_logits_and_velocities_of_the_engine(model, present):
    inputs = list(frames(present))
    rows = [('reach for the red cube', [model.branch_prompt('answer', 'where is the ball'),
                                        [*model.branch_prompt('speech', ''), 300, 301]]),
            ('stop', [[*model.branch_prompt('memory', ''), 270], model.branch_prompt('answer', 'how many'), [401, 7]])]
    batch = pack(model, inputs, rows)
    network = Pi0Network(model.network.config)
    initialise(network, 3)
    forward = PackedForward(network)
    with torch.inference_mode():
        output = forward(batch)
        logits = forward.logits(output.hidden)
        cache = UnifiedKVCache(model.spec.cache_spec(frames=2, branches=4, branch_tokens=24), 64)
        for b, (_, seen) in enumerate(inputs):
            for k, (instruction, branches) in enumerate(rows):
                frame = cache.acquire_frame(0)
                model.prefill(seen, instruction, cache, frame)
                text = len(model.prefix_tokens(instruction, seen.state))
                torch.testing.assert_close(logits[b, k, text - 1], model.prefix_logits(cache, frame),
                                           atol=2e-5, rtol=2e-5)
                start = text
                for branch in branches:
                    slot = cache.open_branch(frame)
                    for place, token in enumerate(branch):  # one by one: every token's logits
                        given = model.extend(cache, [slot], [[token]])[0]
                        torch.testing.assert_close(logits[b, k, start + place], given, atol=2e-5, rtol=2e-5)
                    cache.close_branch(slot)
                    start += len(branch)
                expert = model.network.expert
                for s in range(SAMPLES):
                    t = float(batch.times[b, k, s])
                    mixed = t * batch.noise[b, k, s] + (1 - t) * batch.actions[b, k]
                    velocity = expert.velocity(mixed, expert.modulation(t), cache, frame)
                    torch.testing.assert_close(output.velocity[b, k, s], velocity, atol=2e-5, rtol=2e-5)
                cache.release_frame(frame)
