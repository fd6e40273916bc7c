"""The benchmark end to end on a small model, and that it refuses results of unequal work."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from bench_models import small_model_file
from safetensors.torch import save_file

from oxygen_ros import cli
from oxygen_ros.bench.lane import BenchFailed, FrameRecord, check_frame
from oxygen_ros.bench.measure import ModeRecord, check_same_actions, check_tokens, measure
from oxygen_ros.bench.realtime_result import executed_actions
from oxygen_ros.bench.settings import BenchSettings
from oxygen_ros.bench.workload import Workload
from oxygen_ros.engine.requests import ActionChunk, FinishReason, SamplingParams, TextDelta, TextRequest
from oxygen_ros.models.interface import PolicyInput
from oxygen_ros.models.pi05_weights import sources
from oxygen_ros.models.registry import LoadOptions, load_model, read_model_file
from oxygen_ros.observation import Observation

MODES = ('isolated', 'shared_kv', 'continuous_batching')


@pytest.fixture(scope='module')
def model_file(tmp_path_factory):
    return str(small_model_file(tmp_path_factory.mktemp('models')))


def load(model_file):
    return load_model(read_model_file(model_file), LoadOptions())


def bench(*words):
    return cli.main(['bench', '--threads', '1', *map(str, words)])


@pytest.fixture(autouse=True)
def threads_as_before():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def test_all_modes_are_measured_and_written(model_file, tmp_path, capsys):
    file = tmp_path / 'deep' / 'result.json'
    assert bench('--model', model_file, '--rounds', 4, '--text-length', 9, 4, '--tokens-per-frame', 3,
                 '--denoise-steps', 2, '--prompt-tokens', 11, '--json', file, '--plots', tmp_path / 'plots') == 0
    result = json.loads(file.read_text())
    assert result['schema'] == 'oxygen_ros.bench/1' and result['random_weights'] and result['seed'] == 0
    assert result['machine']['processor'] and result['versions']['torch'] and 'revision' in result['versions']
    assert result['config']['model'] == model_file and [c['workload']['text_length'] for c in result['cases']] == [9, 4]
    for case, tokens in zip(result['cases'], (9, 4)):
        assert list(case['modes']) == list(MODES)
        assert case['prefix_tokens'] == 2 * 4 + 11
        assert case['same_texts'] == 1.0
        for mode in case['modes'].values():
            assert mode['frames'] == 4 and mode['tokens_per_frame'] == tokens
            assert mode['cpu']['p50'] > 0 and mode['wall']['max'] >= mode['wall']['p99'] >= mode['wall']['p50']
            assert 0 < mode['kv_bytes'] <= mode['kv_bytes_peak'] <= mode['kv_bytes_pools']
            assert mode['tokens_per_second'] > 0 and mode['first_token']['count'] and mode['finished_text']['count']
            assert set(mode['split_cpu']) == {'prefill', 'vision', 'denoise', 'extend', 'decode', 'head', 'engine'}
            assert 'engine_overhead_cpu' in mode
            stages = [call['stage'] for call in mode['timeline']]
            assert stages[:2] == ['prefill', 'denoise']
    modes = result['cases'][0]['modes']
    assert [len([c for c in modes[m]['timeline'] if c['stage'] == 'prefill']) for m in MODES] == [2, 1, 1]
    assert [len([c for c in modes[m]['timeline'] if c['stage'] == 'decode']) for m in MODES] == [8, 8, 3]
    assert modes['continuous_batching']['batch'] == pytest.approx(8 / 3) and modes['isolated']['batch'] == 1
    assert modes['continuous_batching']['batch_slots'] == 3
    output = capsys.readouterr().out
    assert all(mode in output for mode in MODES) and 'weights: random, seed 0' in output
    assert {path.name for path in (tmp_path / 'plots').iterdir()} == {'ablation.png', 'tradeoff.png', 'timeline.png',
                                                                    'speedup.png'}


@pytest.mark.parametrize('arrivals', ['poisson', 'bursty', 'mixed'])
def test_irregular_arrivals_are_measured_and_every_text_comes_out(model_file, tmp_path, arrivals):
    file = tmp_path / 'result.json'
    assert bench('--model', model_file, '--rounds', 6, '--text-length', 6, '--tokens-per-frame', 2, '--arrivals',
                 arrivals, '--denoise-steps', 1, '--json', file) == 0
    assert list(json.loads(file.read_text())['cases'][0]['modes']) == list(MODES)


def test_real_time_and_endurance_run(model_file, tmp_path, capsys):
    file = tmp_path / 'result.json'
    assert bench('--model', model_file, '--adaptive', '--period', 0.05, '--seconds', 1, '--blocks', 2, '--text-length',
                 6, '--permanent-load', '--modes', 'continuous_batching', '--json', file) == 0
    mode = json.loads(file.read_text())['real_time'][0]['modes']['continuous_batching']
    assert mode['due'] == 20 and 0 < mode['chunks'] <= 20 and mode['tokens_per_second'] > 0
    assert mode['kv_bytes_peak'] <= mode['kv_bytes_pools']
    assert bench('--model', model_file, '--adaptive', '--cpu-time', '--period', 0.04, '--seconds', 1, '--blocks', 1,
                 '--text-length', 6, '--arrivals', 'poisson', '--set', 'packing=plain', '--json', file) == 0
    result = json.loads(file.read_text())['real_time'][0]
    assert result['workload']['clock'] == 'cpu' and list(result['modes']) == list(MODES)
    assert all(mode['due'] == 25 and mode['chunks'] and mode['texts_finished'] for mode in result['modes'].values())
    assert bench('--model', model_file, '--frames', 6, '--text-length', 4, '--json', file) in (0, 1)
    result = json.loads(file.read_text())['cases'][0]
    assert list(result['modes']) == ['continuous_batching'] and result['endurance']['frames'] == 6
    assert 'first against last 2 of 6 frames' in capsys.readouterr().out


def test_checkpoint_in_openpi_layout_is_measured(model_file, tmp_path):
    network = load(model_file).network
    tensors = {}
    for name, source in sources(network.config).items():
        tensor = network.get_parameter(name).detach() - source.add
        rows = source.rows or [len(tensor) // len(source.names)] * len(source.names)
        tensors.update((part, piece.contiguous()) for part, piece in zip(source.names, tensor.split(list(rows))))
    save_file(tensors, tmp_path / 'model.safetensors')
    file = tmp_path / 'result.json'
    assert bench('--model', model_file, '--checkpoint', tmp_path, '--rounds', 1, '--text-length', 3, '--json',
                 file) == 0
    result = json.loads(file.read_text())
    assert result['weights'] == str(tmp_path) and not result['random_weights']


def test_wrong_words_are_refused_in_one_line(model_file, tmp_path, capsys):
    for words, expected in ((['--rounds', '0'], 'rounds is 0'), (['--cameras', '3'], 'cameras is 3'),
                            (['--set', 'no=1'], "option 'no' is unknown"),
                            (['--json', str(tmp_path)], 'cannot be written')):
        assert bench('--model', model_file, *words) == 2
        error = capsys.readouterr().err
        assert expected in error and error.count('\n') == 1


def test_engine_that_fails_gives_no_result(model_file, monkeypatch):
    model = load(model_file)

    def broken(*_):
        raise RuntimeError('out of order')

    settings = BenchSettings(rounds=2, workload=Workload(4, 2, 1))
    monkeypatch.setattr(model, 'denoise', broken)
    with pytest.raises((BenchFailed, RuntimeError), match='out of order'):
        measure(model, settings)


def test_text_that_an_error_ends_early_gives_no_result(model_file, monkeypatch, capsys):
    model = load(model_file)
    extend, calls = model.extend, []

    def sometimes(cache, slots, tokens):
        calls.append(slots)
        logits = extend(cache, slots, tokens)
        if len(calls) > 150:  # behind the engine's warm-up
            logits[0] = float('nan')
        return logits

    monkeypatch.setattr(model, 'extend', sometimes)
    with pytest.raises(BenchFailed, match=r'a text ended after \d+ of 6 tokens \(ERROR'):
        measure(model, BenchSettings(rounds=30, bare=False, workload=Workload(6, 2, 1)))


def chunk(number=1, actions=None):
    inputs = PolicyInput(Observation(number, 0, {}))
    return ActionChunk(inputs, np.zeros((2, 2)) if actions is None else actions, 0.0, 0.0, 0.0)


def end(tokens, wanted=5):
    request = TextRequest(1, 'speech', sampling=SamplingParams(wanted))
    return TextDelta(request, None, 0, 'text', tokens, 0.1, FinishReason.STOP)


def test_unequal_work_is_refused():
    frame = FrameRecord(1, 1.0, 1.0, 5)
    check_frame('mode', frame, [chunk(), end(5)])
    with pytest.raises(BenchFailed, match='0 actions instead of 1'):
        check_frame('mode', frame, [end(5)])
    with pytest.raises(BenchFailed, match='after 3 of 5 tokens'):
        check_frame('mode', frame, [chunk(), end(3)])
    check_tokens('mode', ModeRecord(frames=[frame], all_tokens=5), [[5]], uniform=True)
    with pytest.raises(BenchFailed, match='4 tokens of finished texts came out instead of 5'):
        check_tokens('mode', ModeRecord(frames=[frame], all_tokens=4), [[5]], uniform=True)
    with pytest.raises(BenchFailed, match='frame 1 gave 5 tokens instead of 6'):
        check_tokens('mode', ModeRecord(frames=[frame], all_tokens=6), [[6]], uniform=True)
    one = ModeRecord(actions={1: np.ones((2, 2))})
    check_same_actions({'a': one, 'b': ModeRecord(actions={1: np.full((2, 2), 1.001)})})
    for other in (np.full((2, 2), 1.1), np.full((2, 2), np.nan)):
        with pytest.raises(BenchFailed, match='actions of frame 1 differ between a and b'):
            check_same_actions({'a': one, 'b': ModeRecord(actions={1: other})})


def test_actions_of_a_chunk_are_executed_until_the_next_one_or_its_end():
    # Gaps of 0.1 s (5 actions of 0.02 s) and 0.4 s, in which a chunk of 10 runs out; blocks do not touch.
    assert executed_actions([[0.0, 0.1, 0.5], [9.0, 9.1]], 10, 0.02) == (20, pytest.approx(0.6))
    assert executed_actions([[1.0]], 10, 0.02) == (0, 0.0)
