"""Static shapes: graphs are captured once and replayed on filled buffers, and give what the usual way gives."""

import math

import pytest
import torch
from engine_life import life
from small_policy import policy_input, small_policy

from oxygen_ros.engine.cost_model import CostModel, Stage
from oxygen_ros.engine.graphs import Graphs, capture_for, use_graphs
from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.errors import ConfigError
from oxygen_ros.models.static_shapes import GraphCache, StaticDecode, StaticDenoise, buckets


class FakeCapture:
    """Stands in for CUDA graphs: a replay does the work again, from its buffers into the memory of the first time."""

    def __init__(self):
        self.captured = self.replayed = 0

    def __call__(self, work):
        self.captured += 1
        output = work().clone()
        output.fill_(math.nan)  # a capture computes nothing

        def replay():
            self.replayed += 1
            output.copy_(work())

        return output, replay


@pytest.fixture(scope='module')
def model():
    return small_policy()


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.inference_mode():
        yield


def two_caches(model, branches=6, frames=4):
    """Return two caches with the same frames, of different lengths."""
    caches = []
    for _ in range(2):
        cache = UnifiedKVCache(model.spec.cache_spec(frames + 1, branches, 24))
        for number in range(1, frames + 1):
            cameras = ('head', 'front') if number % 2 else ('head',)
            model.prefill(policy_input(number, cameras=cameras), f'do {number} things' * (number % 3), cache,
                          cache.acquire_frame(number))
        caches.append(cache)
    return caches


@pytest.mark.parametrize('branches', [1, 2, 3, 5, 6])
def test_static_decode_equals_the_usual_one(model, branches):
    usual, static = two_caches(model)
    decoder, capture = model.network.decoder, FakeCapture()
    steps = StaticDecode(decoder, static, capture)
    for cache in (usual, static):
        slots = [cache.open_branch(i % 4) for i in range(branches)]
        decoder.extend(cache, slots, [[300 + i] * (1 + i) for i in range(branches)])
    for step in range(4):
        tokens = [310 + step + i for i in range(branches)]
        expected = decoder.extend(usual, slots, [[token] for token in tokens])
        torch.testing.assert_close(steps.step(slots, tokens), expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(static.branch_kv, usual.branch_kv, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(static.frame_kv, usual.frame_kv, rtol=0, atol=0)
    assert [b.length for b in static.branches] == [b.length for b in usual.branches]
    assert (capture.captured, capture.replayed) == (1, 4)


def test_one_graph_serves_all_batches_of_its_bucket(model):
    usual, static = two_caches(model)
    decoder, capture = model.network.decoder, FakeCapture()
    steps = StaticDecode(decoder, static, capture)
    for cache in (usual, static):
        for frame in (2, 0, 0, 3, 1, 2):
            cache.open_branch(frame)
    for batch in ([0, 2, 5], [1, 3, 4], [0, 1, 2, 3], [4], [1, 3, 5]):
        expected = decoder.extend(usual, batch, [[300 + slot] for slot in batch])
        torch.testing.assert_close(steps.step(batch, [300 + slot for slot in batch]), expected, rtol=1e-5, atol=1e-5)
    assert (capture.captured, len(steps.graphs)) == (2, 2)  # of 1 and of 4 rows


def test_logits_handed_out_are_not_overwritten_by_the_next_step(model):
    cache, _ = two_caches(model)
    steps = StaticDecode(model.network.decoder, cache, FakeCapture())
    slot = cache.open_branch(0)
    first = steps.step([slot], [300])
    kept = first.clone()
    steps.step([slot], [301])
    assert torch.equal(first, kept)


def test_full_branch_is_refused_and_nothing_is_written(model):
    cache, _ = two_caches(model)
    steps = StaticDecode(model.network.decoder, cache, FakeCapture())
    slot = cache.open_branch(0)
    cache.advance_branch(slot, 24)
    before = cache.branch_kv.clone()
    with pytest.raises(ValueError, match='full'):
        steps.step([slot], [300])
    assert torch.equal(before, cache.branch_kv)


def test_nan_in_what_is_not_in_use_reaches_nobody(model):
    usual, static = two_caches(model)
    decoder, expert = model.network.decoder, model.network.expert
    for frame, state in enumerate(static.frames):
        static.frame_kv[:, :, frame, :, state.length:] = math.nan
    static.branch_kv[:] = math.nan
    for cache in (usual, static):
        slots = [cache.open_branch(frame) for frame in (0, 1, 2)]
    expected = decoder.extend(usual, slots, [[300], [301], [302]])
    steps = StaticDecode(decoder, static, FakeCapture())
    torch.testing.assert_close(steps.step(slots, [300, 301, 302]), expected, rtol=1e-5, atol=1e-5)
    noise = torch.randn((model.spec.horizon, model.spec.action_dim), generator=torch.Generator().manual_seed(1))
    expected = expert.denoise(noise, usual, 1, 3)
    ours = StaticDenoise(expert, static, FakeCapture()).denoise(noise, 1, 3)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)


def test_static_denoise_equals_the_usual_one_and_has_a_graph_per_frame(model):
    usual, static = two_caches(model)
    expert, capture = model.network.expert, FakeCapture()
    denoiser = StaticDenoise(expert, static, capture)
    for number, frame in enumerate([0, 1, 2, 3, 1, 1]):
        if number == 5:  # the slot holds another frame now, of another length
            for cache in (usual, static):
                model.prefill(policy_input(9), 'x', cache, 1)
        noise = torch.randn((model.spec.horizon, model.spec.action_dim),
                            generator=torch.Generator().manual_seed(number))
        expected = expert.denoise(noise, usual, frame, 3)
        torch.testing.assert_close(denoiser.denoise(noise, frame, 3), expected, rtol=1e-5, atol=1e-5)
    assert (capture.captured, capture.replayed) == (4, 6)
    for frame, state in enumerate(static.frames):
        ours, expected = (cache.frame_kv[:, :, frame, :, :state.length] for cache in (static, usual))
        assert torch.equal(ours, expected)


def test_model_takes_the_static_way_for_its_cache_only(model):
    usual, static = two_caches(model)
    network, capture = model.network, FakeCapture()
    network.decoder.static[static] = StaticDecode(network.decoder, static, capture)
    network.expert.static[static] = StaticDenoise(network.expert, static, capture)
    noise = torch.zeros((model.spec.horizon, model.spec.action_dim))
    for cache in (usual, static):
        slots = [cache.open_branch(0), cache.open_branch(1)]
        model.extend(cache, slots, [[300, 301], [302]])  # a prompt is no decode step
        assert capture.captured == 0
    for cache, captured in ((usual, 0), (static, 2)):
        model.extend(cache, slots, [[303], [304]])
        model.denoise(cache, 0, noise, 2)
        assert capture.captured == captured
    del static, cache
    assert not network.decoder.static or len(network.decoder.static) <= 1  # it goes with its cache


# -- the graphs themselves ---------------------------------------------------------------------------------------------

def test_buckets_end_with_the_largest_batch_and_waste_little():
    assert buckets(1) == (1,) and buckets(2) == (1, 2) and buckets(7) == (1, 2, 4, 7)
    assert buckets(32) == (1, 2, 4, 8, 12, 16, 24, 32)
    for most in range(1, 70):
        sizes = buckets(most)
        assert sizes[-1] == most and list(sizes) == sorted(set(sizes))
        assert all(next(size for size in sizes if size >= n) - n <= 7 for n in range(1, most + 1))


def test_graphs_are_captured_once_and_the_oldest_goes():
    capture, buffer = FakeCapture(), torch.zeros(1)
    graphs = GraphCache(capture, most=2)
    for key, value in (('a', 1), ('b', 2), ('a', 3)):
        buffer.fill_(value)
        assert graphs.run(key, lambda: buffer * 10).item() == 10 * value
    assert (capture.captured, capture.replayed) == (2, 3)
    graphs.run('c', lambda: buffer * 10)  # 'b' was not used for longest
    graphs.run('a', lambda: buffer * 10)
    assert (capture.captured, len(graphs)) == (3, 2)
    graphs.run('b', lambda: buffer * 10)
    assert capture.captured == 4
    graphs.clear()
    graphs.run('b', lambda: buffer * 10)
    assert (capture.captured, len(graphs)) == (5, 1)


def test_work_goes_on_without_graphs_when_none_can_be_captured():
    attempts = []

    def broken(work):
        attempts.append(work)
        raise RuntimeError('operation not permitted when stream is capturing')

    graphs = GraphCache(broken)
    assert [graphs.run(key, lambda: torch.ones(1)).item() for key in 'aba'] == [1.0] * 3
    assert len(attempts) == 1 and 'capturing' in str(graphs.failed)


# -- the choice --------------------------------------------------------------------------------------------------------

def measured(network, cache, with_graphs, without):
    """Return a measurement that finds these seconds for (decode, denoise), and the record of what was measured."""
    record = []

    def measure():
        costs = CostModel()
        for stage, part, size, index in ((Stage.DECODE, network.decoder, cache.spec.branches, 0),
                                         (Stage.DENOISE, network.expert, 1, 1)):
            costs.observe(stage, size, (with_graphs if cache in part.static else without)[index])
        record.append((cache in network.decoder.static, cache in network.expert.static))
        return costs

    return measure, record


@pytest.mark.parametrize('choice, with_graphs, expected, record', [
    (Graphs.AUTO, (1, 1), {Stage.DECODE, Stage.DENOISE}, [(False, False), (True, True)]),
    (Graphs.AUTO, (1, 3), {Stage.DECODE}, [(False, False), (True, True), (True, False)]),
    (Graphs.AUTO, (3, 1), {Stage.DENOISE}, [(False, False), (True, True), (False, True)]),
    (Graphs.AUTO, (3, 3), set(), [(False, False), (True, True), (False, False)]),
    (Graphs.ON, (3, 3), {Stage.DECODE, Stage.DENOISE}, [(True, True)]),
    (Graphs.OFF, (1, 1), set(), [(False, False)])])
def test_graphs_are_used_where_they_are_faster(model, choice, with_graphs, expected, record):
    cache, _ = two_caches(model)
    measure, seen = measured(model.network, cache, with_graphs, (2, 2))
    assert use_graphs(choice, model.network, cache, FakeCapture(), measure) == expected
    assert seen == record


def test_graphs_that_cannot_be_captured_are_not_kept(model):
    cache, _ = two_caches(model)

    def measure():
        for part in (model.network.decoder, model.network.expert):
            if cache in part.static:
                part.static[cache].graphs.failed = RuntimeError('no')
        return CostModel()

    assert use_graphs(Graphs.ON, model.network, cache, FakeCapture(), measure) == set()


def test_a_cpu_has_no_graphs():
    assert capture_for(Graphs.AUTO, 'cpu') is capture_for(Graphs.OFF, 'cuda') is None
    with pytest.raises(ConfigError, match="device 'cpu' has none"):
        capture_for(Graphs.ON, 'cpu')


def test_engine_on_graphs_says_and_does_the_same(monkeypatch):
    """A whole engine, whose every decode step and chunk is a replay."""
    capture = FakeCapture()
    usual = life(small_policy(), graphs=Graphs.OFF)
    monkeypatch.setattr('oxygen_ros.engine.engine.capture_for', lambda *_: capture)
    ours = life(small_policy(), graphs=Graphs.ON)
    assert capture.replayed > 15 and ours[0] == usual[0] and len(usual[0]) >= 6
    for one, other in zip(ours[1], usual[1], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
