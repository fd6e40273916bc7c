"""The network on the cache: what may be written where, and that order and grouping of the work change nothing."""

import pytest
import torch
from small_policy import policy_input, small_policy

from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.models.gemma import GemmaConfig
from oxygen_ros.models.layers import rms_norm, rotary_table, rotate, time_embedding
from oxygen_ros.models.siglip import VisionConfig


@pytest.fixture(scope='module')
def model():
    with torch.inference_mode():
        yield small_policy()


@pytest.fixture
def cache(model):
    """A cache with frames 1, 2 and 3 in slots 0, 1 and 2."""
    with torch.inference_mode():
        result = UnifiedKVCache(model.spec.cache_spec(4, 6, 40))
        for number in (1, 2, 3):
            model.prefill(policy_input(number), f'step {"left " * number}', result, result.acquire_frame(number))
        yield result


def words(seed, count, low=256, high=470):
    return torch.randint(low, high, (count,), generator=torch.Generator().manual_seed(seed)).tolist()


def noise(model, seed=0):
    return torch.randn((model.spec.horizon, model.spec.action_dim), generator=torch.Generator().manual_seed(seed))


def close(got, expected):
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)


def test_prompt_at_once_equals_token_by_token(model, cache):
    prompt = words(1, 12)
    at_once, one_by_one, halves = (cache.open_branch(0) for _ in range(3))
    logits = model.extend(cache, [at_once], [prompt])
    for token in prompt:
        single = model.extend(cache, [one_by_one], [[token]])
    model.extend(cache, [halves], [prompt[:5]])
    half = model.extend(cache, [halves], [prompt[5:]])
    close(single, logits)
    close(half, logits)
    for pool in (cache.branch_k, cache.branch_v):
        close(pool[:, one_by_one, :, :12], pool[:, at_once, :, :12])
        close(pool[:, halves, :, :12], pool[:, at_once, :, :12])


def test_ragged_batch_on_several_frames_equals_each_branch_alone(model, cache):
    prompts = [words(seed, count) for seed, count in ((1, 3), (2, 9), (3, 1), (4, 6))]
    frames = [0, 1, 0, 2]
    alone = []
    for frame, prompt in zip(frames, prompts):
        branch = cache.open_branch(frame)
        alone.append((model.extend(cache, [branch], [prompt]), model.extend(cache, [branch], [[300]])))
        cache.close_branch(branch)
    slots = [cache.open_branch(frame) for frame in frames]
    together = model.extend(cache, slots, prompts)
    step = model.extend(cache, slots, [[300]] * 4)
    for row in range(4):
        close(together[row], alone[row][0][0])
        close(step[row], alone[row][1][0])


def test_reused_slot_shows_nothing_of_the_branch_before(model, cache):
    prompt = words(1, 3)
    fresh = cache.open_branch(1)
    expected = model.extend(cache, [fresh], [prompt])
    cache.close_branch(fresh)
    other = cache.open_branch(0)
    assert other == fresh
    model.extend(cache, [other], [words(9, 30)])
    cache.close_branch(other)
    again = cache.open_branch(1)
    neighbour = cache.open_branch(1)
    model.extend(cache, [neighbour], [words(8, 25)])  # makes the batch look at 25 tokens of every slot
    both = model.extend(cache, [again, neighbour], [prompt, [300]])
    torch.testing.assert_close(both[0], expected[0], rtol=1e-5, atol=1e-5)


def test_reused_frame_slot_shows_nothing_of_the_frame_before(model, cache):
    expected = model.denoise(cache, 0, noise(model), 3), model.prefix_logits(cache, 0)
    cache.release_frame(2)
    slot = cache.acquire_frame('other')
    assert slot == 2  # frame 3 was longer
    model.prefill(policy_input(1), 'step left ', cache, slot)
    torch.testing.assert_close(model.denoise(cache, slot, noise(model), 3), expected[0], rtol=0, atol=0)
    torch.testing.assert_close(model.prefix_logits(cache, slot), expected[1], rtol=0, atol=0)


def test_frames_stay_bit_identical_while_branches_decode_and_actions_are_denoised(model, cache):
    def snapshot():
        return [pool[:, frame, :, :cache.frames[frame].length].clone() for pool in (cache.frame_k, cache.frame_v)
                for frame in range(3)] + [extra.clone() for extra in cache.extras.values()]

    before = snapshot()
    beyond = cache.frame_k[:, 3].clone()
    actions = model.denoise(cache, 0, noise(model), 3)
    slots = [cache.open_branch(frame) for frame in (0, 1, 2, 0)]
    model.extend(cache, slots, [words(seed, 4) for seed in range(4)])
    for step in range(8):
        model.extend(cache, slots, [[300 + step]] * 4)
        model.denoise(cache, step % 3, noise(model, step), 3)
    for old, new in zip(before, snapshot()):
        assert torch.equal(old, new)
    assert torch.equal(beyond, cache.frame_k[:, 3])
    assert torch.equal(model.denoise(cache, 0, noise(model), 3), actions)


def test_denoising_writes_no_branch_and_no_further_than_its_scratch_tokens(model, cache):
    branch = cache.open_branch(0)
    model.extend(cache, [branch], [words(1, 5)])
    branches = cache.branch_k.clone()
    length, horizon = cache.frames[0].length, model.spec.horizon
    cache.frame_k[:, 0, :, length + horizon:] = 7.0
    model.denoise(cache, 0, noise(model), 3)
    assert torch.equal(branches, cache.branch_k)
    assert (cache.frame_k[:, 0, :, length + horizon:] == 7.0).all()


def test_text_does_not_see_the_scratch_tokens(model, cache):
    first, second = cache.open_branch(0), cache.open_branch(0)
    before = model.extend(cache, [first], [words(1, 4)])
    model.denoise(cache, 0, noise(model), 3)
    assert torch.equal(model.extend(cache, [second], [words(1, 4)]), before)


def test_actions_and_text_depend_on_picture_instruction_and_state(model, cache):
    def outputs(frame):
        branch = cache.open_branch(frame)
        logits = model.extend(cache, [branch], [words(1, 2)])
        cache.close_branch(branch)
        return model.denoise(cache, frame, noise(model), 3), logits

    from dataclasses import replace
    one = policy_input(1)
    for inputs, instruction in ((one, 'step right'), (replace(one, state=one.state + 0.1), 'step left '),
                                (policy_input(1, picture=9), 'step left ')):
        slot = cache.acquire_frame('changed')
        model.prefill(inputs, instruction, cache, slot)
        for new, old in zip(outputs(slot), outputs(0)):
            assert not torch.allclose(new, old, atol=1e-4)
        cache.release_frame(slot)


def test_full_branch_is_refused_whole(model, cache):
    branch = cache.open_branch(0)
    model.extend(cache, [branch], [words(1, 38)])
    with pytest.raises((ValueError, IndexError)):
        model.extend(cache, [branch], [words(2, 3)])
    assert cache.branches[branch].length == 38
    model.extend(cache, [branch], [words(2, 2)])
    assert cache.branch_room(branch) == 0


def test_norm_is_computed_in_float32_whatever_the_type():
    x = torch.randn((3, 16), generator=torch.Generator().manual_seed(0)) * 100
    scale = torch.rand(16, generator=torch.Generator().manual_seed(1))
    expected = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-6).sqrt() * scale.double()
    torch.testing.assert_close(rms_norm(x, scale).double(), expected, rtol=1e-5, atol=1e-5)
    low = rms_norm(x.bfloat16(), scale.bfloat16())
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.double(), expected, rtol=0.02, atol=0.02)


def test_rotation_keeps_lengths_and_depends_on_distance_alone():
    cos, sin = rotary_table(50, 8)
    q, k = torch.randn((2, 1, 8), generator=torch.Generator().manual_seed(0))

    def score(i, j):
        return float((rotate(q, cos[i], sin[i]) * rotate(k, cos[j], sin[j])).sum())

    assert score(3, 10) == pytest.approx(score(40, 47), abs=1e-5)
    assert score(3, 10) != pytest.approx(score(3, 11), abs=1e-3)
    assert float(rotate(q, cos[33], sin[33]).norm()) == pytest.approx(float(q.norm()), rel=1e-6)


def test_time_embedding_tells_times_apart():
    one, other = time_embedding(0.5, 32), time_embedding(0.499, 32)
    assert one.shape == (32,) and float((one - other).abs().max()) > 0.1


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match='heads 3'):
        GemmaConfig(8, 1, 8, heads=3, kv_heads=2, head_dim=4)
    with pytest.raises(ValueError, match='head_dim 5'):
        GemmaConfig(8, 1, 8, heads=2, kv_heads=2, head_dim=5)
    with pytest.raises(ValueError, match='image 30'):
        VisionConfig(30, 14, 8, 1, 2, 8)
    assert VisionConfig(28, 14, 8, 1, 2, 8).tokens == 4
