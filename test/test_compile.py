"""Compiled pieces: they give what the eager ones give, are chosen where they are faster, and are compiled only once."""

from __future__ import annotations

import argparse
import logging
import shutil
from collections import Counter

import pytest
import torch
from engine_life import life
from small_policy import policy_input, small_policy

from oxygen_ros.bench import main as bench
from oxygen_ros.bench.run import settings_of
from oxygen_ros.engine import compiling
from oxygen_ros.engine.compiling import Compile, use_compiled
from oxygen_ros.engine.cost_model import CostModel, Stage
from oxygen_ros.engine.graphs import Graphs
from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.errors import ConfigError
from oxygen_ros.models import ahead_of_time
from oxygen_ros.models.ahead_of_time import cache_folder, compile_ahead
from oxygen_ros.models.gemma import GemmaLayer
from oxygen_ros.models.initialise import initialise
from oxygen_ros.models.layers import Activation, GatedLinear
from oxygen_ros.models.packing import Packing
from oxygen_ros.models.pieces import Piece, pieces_of, record_calls
from oxygen_ros.models.qwen3_vl import QwenConfig, QwenDecoder
from oxygen_ros.models.realtime_chunking import ChunkingMethod, PreviousChunk

EXPERT, DECODER = {Stage.DENOISE}, {Stage.PREFILL, Stage.DECODE}


class FakeCompiler:
    """Stands in for the compiler; what it returns refuses what compiled code would misread, and counts its calls."""

    def __init__(self, change=0.0, fails=None):
        self.compiled, self.calls, self._change, self._fails = [], Counter(), change, fails

    def __call__(self, function, examples, many):
        if self._fails is not None:
            raise self._fails
        name = function.__name__
        self.compiled.append((name, [list(tensor.shape) for tensor in examples], list(many)))

        def run(*tensors):
            self.calls[name] += 1
            for tensor, example, some in zip(tensors, examples, many, strict=True):
                assert tensor.dtype is example.dtype and tensor.is_contiguous()
                assert tensor.shape[some:] == example.shape[some:]
            given = [tensor.clone() for tensor in tensors]
            result = function(*given)
            changed = tuple(part + self._change for part in (result if isinstance(result, tuple) else (result,)))
            return changed if isinstance(result, tuple) else changed[0]

        return run


@pytest.fixture
def model():
    return small_policy()


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.inference_mode():
        yield


def run_network(model):
    """Return a run of all stages, as a warm-up is: what it computes is written into the list it returns."""
    def run():
        cache = UnifiedKVCache(model.spec.cache_spec(2, 4, 24))
        frame = cache.acquire_frame(1)
        model.prefill(policy_input(1), 'do it', cache, frame)
        noise = torch.randn((model.spec.horizon, model.spec.action_dim), generator=torch.Generator().manual_seed(1))
        results = [model.denoise(cache, frame, noise, 3)]
        for count in (1, 3):
            slots = [cache.open_branch(frame) for _ in range(count)]
            results += [model.extend(cache, slots, [[300, 301]] * count), model.extend(cache, slots, [[302]] * count)]
            for slot in slots:
                cache.close_branch(slot)
        return results

    return run


# -- what is compiled --------------------------------------------------------------------------------------------------

@pytest.mark.parametrize('packing', [Packing.PLAIN, Packing.COLUMNS, Packing.ONEDNN])
def test_engine_on_compiled_pieces_says_and_does_the_same(packing, monkeypatch):
    fake = FakeCompiler()
    usual = life(small_policy(), packing=packing)
    monkeypatch.setattr(compiling, 'compile_ahead', fake)
    ours = life(small_policy(), packing=packing, compile=Compile.ON)
    assert ours[0] == usual[0] and len(usual[0]) >= 6
    assert all(torch.equal(one, other) for one, other in zip(ours[1], usual[1], strict=True))
    # An expert's chunk has one size, a decoder's batch any; the layers share their pieces.
    assert [name for name, _, _ in fake.compiled] == ['norm', 'turn', 'activate', 'norm', 'turn', 'add_norm',
                                                      'activate']
    assert all(fake.calls[name] > 50 for name in ('norm', 'turn', 'add_norm', 'activate'))


def test_rows_may_change_where_they_did_and_nowhere_else(model):
    fake = FakeCompiler()
    use_compiled(Compile.ON, model.network, 4, run_network(model), fake)
    c, horizon = model.network.expert.config, model.spec.horizon
    assert all(many == [name != 'norm' or i == 0 for i in range(len(many))] for name, _, many in fake.compiled[:3])
    assert [(name, shapes[0]) for name, shapes, _ in fake.compiled[3:]] == [
        ('norm', [horizon, c.width]), ('turn', [horizon, c.qkv_width]), ('add_norm', [horizon, c.width]),
        ('activate', [horizon, 2 * c.mlp])]
    assert not any(some for _, _, many in fake.compiled[3:] for some in many)


def test_weights_of_two_types_are_each_given_as_they_are(model):
    """Checkpoints may keep norms in float32: code for bfloat16 would misread them."""
    network = model.network.to(torch.bfloat16)
    for layer in network.decoder.layers:
        layer.norm1.data, layer.norm2.data = layer.norm1.data.float(), layer.norm2.data.float()
    layer, x = network.decoder.layers[0], torch.randn(4, 32, dtype=torch.bfloat16)
    fake = FakeCompiler()
    pieces = pieces_of(network.decoder)
    record_calls(pieces, lambda: [layer.norm(x[:n], layer.norm1) for n in (1, 4)])
    for piece in pieces:
        piece.compile(fake)
    assert fake.calls['norm'] == 2 and sum(piece.function is not None for piece in pieces) == 1  # checked, as float32


def test_piece_that_is_called_with_several_types_stays_eager(model):
    layer = model.network.decoder.layers[0]
    pieces, fake = pieces_of(layer), FakeCompiler()
    record_calls(pieces, lambda: [layer.norm(torch.ones(3, 32, dtype=dtype), layer.norm1)
                                  for dtype in (torch.float32, torch.bfloat16)])
    for piece in pieces:
        piece.compile(fake)
    assert not fake.compiled and all(piece.function is None for piece in pieces)


def test_chunk_whose_actions_have_times_of_their_own_is_done_eagerly(model):
    """Trained real-time chunking gives each action its own modulation: other shapes than were compiled."""
    expert, cache = model.network.expert, UnifiedKVCache(model.spec.cache_spec(2, 1, 24))
    frame = cache.acquire_frame(1)
    model.prefill(policy_input(1), '', cache, frame)
    noise = torch.randn((model.spec.horizon, model.spec.action_dim))
    previous = PreviousChunk(torch.ones(3, model.spec.action_dim), 2, 3, ChunkingMethod.TRAINED)
    expected = expert.denoise(noise, cache, frame, 3, previous)
    use_compiled(Compile.ON, model.network, 4, run_network(model), FakeCompiler())  # which asserts shapes
    assert torch.equal(expert.denoise(noise, cache, frame, 3, previous), expected)


def test_qwen_layers_share_what_has_no_weights_of_its_own():
    """Their rotation has: norms of queries and keys."""
    decoder = QwenDecoder(QwenConfig(32, 2, 48, 4, 2, 8, sections=(2, 1, 1)), 50, 20)
    initialise(decoder, 0)
    x, (cos, sin) = torch.randn(5, 32), decoder.turn(torch.arange(5), torch.float32)

    def run(rows=5):
        return [layer.finish(x[:rows], layer.project(x[:rows], cos[:rows], sin[:rows])[0].flatten(1))
                for layer in decoder.layers]

    expected, pieces, fake = run(), pieces_of(decoder), FakeCompiler()
    record_calls(pieces, lambda: (run(), run(2)))
    for piece in pieces:
        piece.compile(fake)
        piece.put()
    fake.calls.clear()
    assert all(torch.equal(one, other) for one, other in zip(run(), expected, strict=True))
    assert fake.calls == {'norm': 4, 'activate': 2}


# -- the choice --------------------------------------------------------------------------------------------------------

def measured(model, compiled, eager):
    """Return a measurement that finds these seconds for (prefill, decode, denoise), and what was in place each time."""
    record = []

    def measure():
        run_network(model)()
        network, costs = model.network, CostModel()
        in_place = ['norm' in owner.__dict__ for owner in (network.decoder.layers[0], network.expert)]
        record.append(tuple(in_place))
        for stage, size, index, part in ((Stage.PREFILL, 1, 0, 0), (Stage.DECODE, 4, 1, 0), (Stage.DENOISE, 1, 2, 1)):
            costs.observe(stage, size, (compiled if in_place[part] else eager)[index])
        return costs

    return measure, record


@pytest.mark.parametrize('compiled, expected', [
    ((1, 1, 1), EXPERT | DECODER), ((1, 1, 3), DECODER), ((3, 3, 1), EXPERT), ((3, 3, 3), set()),
    ((0.5, 3, 3), DECODER),  # one pays for the other
    ((3, 1.5, 1), EXPERT)])
def test_pieces_are_used_where_they_are_faster(model, compiled, expected):
    measure, record = measured(model, compiled, (2, 2, 2))
    assert use_compiled(Compile.AUTO, model.network, 4, measure, FakeCompiler()) == expected
    assert record[1:] == [(False, False), (True, True)]
    for owner, stages in ((model.network.decoder.layers[1], DECODER), (model.network.expert, EXPERT)):
        assert ('norm' in owner.__dict__) == (stages <= expected)


def test_off_compiles_and_measures_nothing_and_leaves_no_piece(model):
    measure, record = measured(model, (1, 1, 1), (2, 2, 2))
    assert use_compiled(Compile.ON, model.network, 4, measure, FakeCompiler()) == EXPERT | DECODER
    before = len(record)
    assert use_compiled(Compile.OFF, model.network, 4, measure, FakeCompiler(fails=RuntimeError())) == set()
    assert len(record) == before
    assert not any({'norm', 'turn', 'add_norm', 'activate'} & module.__dict__.keys()
                   for module in model.network.modules())


def test_network_is_compiled_once_for_all_its_engines(monkeypatch):
    fake, shared = FakeCompiler(), small_policy()
    monkeypatch.setattr(compiling, 'compile_ahead', fake)
    first = life(shared, compile=Compile.ON)
    count = len(fake.compiled)
    assert life(shared, compile=Compile.AUTO)[0] == life(shared)[0] == first[0] and len(fake.compiled) == count > 0


def test_graphs_capture_compiled_pieces(monkeypatch):
    """What is captured runs them; they are there before anything is captured."""
    fake, captured = FakeCompiler(), []
    monkeypatch.setattr(compiling, 'compile_ahead', fake)

    def capture(work):
        before = fake.calls.copy()
        output = work()
        captured.append(fake.calls - before)
        return output, lambda: output.copy_(work())

    monkeypatch.setattr('oxygen_ros.engine.engine.capture_for', lambda *_: capture)
    ours = life(small_policy(), compile=Compile.ON, graphs=Graphs.ON)
    assert captured and all(calls['norm'] and calls['turn'] for calls in captured)
    assert ours[0] == life(small_policy(), graphs=Graphs.OFF)[0]


# -- when it fails -----------------------------------------------------------------------------------------------------

def test_auto_goes_on_without_a_compiler_and_warns_once(monkeypatch, caplog):
    monkeypatch.setattr(compiling, 'compile_ahead', FakeCompiler(fails=RuntimeError('No working C++ compiler\nfound')))
    with caplog.at_level(logging.WARNING):
        ours = life(small_policy(), compile=Compile.AUTO)
    assert ours[0] == life(small_policy())[0]
    [message] = [record.getMessage() for record in caplog.records if 'compil' in record.getMessage()]
    assert 'No working C++ compiler found' in message and 'apt install g++' in message and '\n' not in message


def test_on_without_a_compiler_is_refused_with_the_remedy(model):
    with pytest.raises(ConfigError, match=r'compile is on.*no compiler.*apt install g\+\+.*auto or off'):
        use_compiled(Compile.ON, model.network, 4, run_network(model), FakeCompiler(fails=OSError('no compiler')))
    assert 'norm' not in model.network.expert.__dict__  # nothing is left of the attempt


def test_what_the_model_raises_is_no_matter_of_the_compiler(model):
    def run():
        raise MemoryError('no room')

    for choice in (Compile.AUTO, Compile.ON):
        with pytest.raises(MemoryError):
            use_compiled(choice, model.network, 4, run, FakeCompiler())
    assert 'norm' not in model.network.expert.__dict__


@pytest.mark.parametrize('change', [0.1, float('nan')])
def test_compiled_code_that_gives_other_numbers_is_not_used(model, change):
    with pytest.raises(ConfigError, match='the compiled piece norm is off by'):
        use_compiled(Compile.ON, model.network, 4, run_network(model), FakeCompiler(change))


# -- the compiler itself -----------------------------------------------------------------------------------------------

needs_compiler = pytest.mark.skipif(shutil.which('g++') is None and shutil.which('clang++') is None,
                                    reason='this machine has no C++ compiler')


@needs_compiler
def test_compiled_pieces_give_what_eager_ones_give_and_are_kept_on_the_disk(monkeypatch, tmp_path):
    """With the real compiler, for few and many rows; float32: operations are fused, so that last bits differ."""
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    gated = GatedLinear(4, 32, Activation.GELU)
    piece = Piece('activate', [gated], gated.activate)
    generator = torch.Generator().manual_seed(0)
    calls = [torch.randn((rows, 64), generator=generator) for rows in (1, 3, 40)]
    for tensor in calls[1:]:
        piece.record()
        gated.activate(tensor)
    piece.compile(compile_ahead)
    piece.put()
    assert gated.activate is piece.function
    before = torch._dynamo.utils.counters['stats'].copy()
    for tensor in calls:
        kept = tensor.clone()
        torch.testing.assert_close(gated.activate(tensor), piece.eager(tensor), rtol=1e-5, atol=1e-6)
        assert torch.equal(tensor, kept)
    assert torch._dynamo.utils.counters['stats'] == before  # no compiler had a part in it
    [file] = cache_folder().glob('*.pt2')
    assert cache_folder().is_relative_to(tmp_path)

    def refuse(*_, **__):
        raise AssertionError('it was compiled again')

    monkeypatch.setattr(torch._inductor, 'aoti_compile_and_package', refuse)
    again = compile_ahead(piece.eager, calls[2:], [True])
    assert torch.equal(again(calls[1]), gated.activate(calls[1]))
    file.write_bytes(b'damaged')
    with pytest.raises(AssertionError, match='compiled again'):
        compile_ahead(piece.eager, calls[2:], [True])


def test_code_of_another_machine_or_torch_is_not_taken(monkeypatch, tmp_path):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    names = []
    monkeypatch.setattr(ahead_of_time, '_load', lambda name, *_: names.append(name) or (lambda given: given))
    layer, x, y = small_policy().network.decoder.layers[0], torch.ones(3, 32), torch.ones(32)
    compile_ahead(layer.norm, (x, y), (True, False))
    compile_ahead(GemmaLayer.norm.__get__(layer), (torch.ones(200, 32), y), (True, False))
    assert names[0] == names[1]  # however many rows the first prefix has
    compile_ahead(layer.norm, (x, y), (False, False))
    compile_ahead(layer.norm, (x.bfloat16(), y), (True, False))
    monkeypatch.setattr(ahead_of_time, '_machine', lambda device: 'another')
    compile_ahead(layer.norm, (x, y), (True, False))
    monkeypatch.setattr(torch, '__version__', '2.99')
    compile_ahead(layer.norm, (x, y), (True, False))
    assert len(set(names)) == 5


@pytest.mark.parametrize('threads, shape, used', [(1, (3000, 32), 'serial'), (2, (3, 32), 'serial'),
                                                  (2, (3000, 32), 'parallel')])
def test_little_work_is_not_shared_between_threads(model, monkeypatch, threads, shape, used):
    """Compiled code shares whatever it is told to: for few rows that takes longer than the work."""
    monkeypatch.setattr(torch, 'get_num_threads', lambda: threads)
    ran = []
    monkeypatch.setattr(ahead_of_time, '_load', lambda name, program, options, device: lambda given: (
        ran.append('parallel' if options.get('cpp.dynamic_threads') else 'serial'), given)[1])
    layer = model.network.decoder.layers[0]
    compile_ahead(layer.norm, (torch.ones(3, 32), torch.ones(32)), (True, False))(torch.ones(shape), torch.ones(32))
    assert ran == [used]


def test_function_with_weights_of_its_own_is_refused(model):
    """What is kept on the disk is found by its operations: it must hold no numbers."""
    layer = model.network.decoder.layers[0]
    with pytest.raises(ValueError, match='weights of its own'):
        compile_ahead(lambda x: layer.norm(x, layer.norm1), (torch.ones(3, 32),), (True,))


@pytest.mark.parametrize('words, expected', [
    ('', ['off']), ('--compile off on', ['off', 'on']), ('--compile auto --text-length 5 6', ['auto', 'auto']),
    ('--set compile=on', ['on'])])
def test_bench_takes_it_as_a_dimension_of_its_series(words, expected):
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    assert [settings.compile.value for settings in settings_of(parser.parse_args(words.split()))] == expected
