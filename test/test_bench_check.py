"""The float64 reference, and the check that is prepared for machines with a GPU, on the CPU."""

from __future__ import annotations

import json

import pytest
import torch
from bench_models import small_model_file

from oxygen_ros.bench import gpu_check
from oxygen_ros.bench.check import Seen, compare, reference_of, run_engine, same_results
from oxygen_ros.engine.graphs import Graphs
from oxygen_ros.models.registry import LoadOptions, load_model, read_model_file

FRAMES, LENGTH, STEPS = 3, 6, 2


@pytest.fixture(scope='module')
def model_file(tmp_path_factory):
    return str(small_model_file(tmp_path_factory.mktemp('models')))


@pytest.fixture(scope='module')
def plain(model_file):
    return load_model(read_model_file(model_file), LoadOptions())


@pytest.fixture(scope='module')
def seen(plain):
    return run_engine(plain, FRAMES, LENGTH, STEPS)


def test_engine_computes_what_the_reference_does(plain, seen):
    result = compare(seen, reference_of(plain, plain.network.state_dict()), torch.float32, STEPS)
    assert result['passed'] and result['same_choice'] == 1 and result['actions'] == FRAMES
    # Texts: 2 with frames 1 and 3, 1 with frame 2; texts of one frame share the logits of their first token.
    assert result['calls'] == FRAMES + 5 * (LENGTH - 1)
    assert len({prefill for prefill, _, _ in seen.logits}) == FRAMES


def test_static_shapes_compute_what_the_reference_does(plain, seen):
    static = run_engine(plain, FRAMES, LENGTH, STEPS, graphs=Graphs.ON)
    assert compare(static, reference_of(plain, plain.network.state_dict()), torch.float32, STEPS)['passed']
    assert same_results(static, seen, 1e-4)['passed']
    # It was another way, and the model is as before.
    assert any(not torch.equal(a[2], b[2]) for a, b in zip(static.actions, seen.actions))
    again = run_engine(plain, FRAMES, LENGTH, STEPS)
    assert all(torch.equal(a[2], b[2]) for a, b in zip(again.actions, seen.actions))


@pytest.mark.parametrize('name', ['vision.layers.0.qkv.weight', 'decoder.layers.1.down.weight',
                                  'decoder.layers.0.norm1', 'decoder.embedding.weight', 'vision.position_embedding'])
def test_wrong_weight_is_noticed_in_words(plain, seen, name):
    weights = dict(plain.network.state_dict())
    weights[name] = weights[name] * 1.05
    result = compare(seen, reference_of(plain, weights), torch.float32, STEPS)
    assert not result['passed'] and result['logit_error'] > result['tolerance']


@pytest.mark.parametrize('name', ['expert.layers.2.qkv.weight', 'expert.layers.0.modulation2.bias',
                                  'expert.time_in.weight', 'expert.action_out.weight'])
def test_wrong_weight_is_noticed_in_actions(plain, seen, name):
    weights = dict(plain.network.state_dict())
    weights[name] = weights[name] + 0.02
    result = compare(seen, reference_of(plain, weights), torch.float32, STEPS)
    assert not result['passed'] and result['action_error'] > result['tolerance'] > result['logit_error']


def test_runs_are_compared_where_both_chose_the_same(seen, plain):
    assert same_results(seen, seen, 1e-6)['passed']
    other = run_engine(plain, FRAMES, LENGTH, STEPS + 1)
    assert not same_results(seen, other, 1e-3)['passed']  # other actions
    *most, (prefill, tokens, logits) = seen.logits
    broken = Seen(seen.prefixes, [*most, (prefill, tokens, logits * float('nan'))], seen.actions)
    assert not same_results(broken, seen, 1e-3)['passed'] and not same_results(seen, broken, 1e-3)['passed']


def test_prepared_check_runs_all_its_parts(model_file, tmp_path, monkeypatch, capsys):
    file = tmp_path / 'result.json'
    compiled = []

    def stand_in(function, examples, many):
        compiled.append(function.__name__)
        return lambda *tensors: function(*(tensor.clone() for tensor in tensors))

    monkeypatch.setattr('oxygen_ros.engine.compiling.compile_ahead', stand_in)
    code = gpu_check.main(['--device', 'cpu', '--check-model', model_file, '--check-length', '4', '--model', model_file,
                           '--rounds', '2', '--text-length', '4', '--tokens-per-frame', '2', '--denoise-steps', '1',
                           '--json', str(file)])
    result = json.loads(file.read_text())
    parts = result['parts']
    assert list(parts) == list(gpu_check.PARTS)
    assert parts['correctness']['passed'] and set(parts['correctness']['ways']) == {
        f'{dtype}, graphs {way}' for dtype in ('float32', 'bfloat16') for way in ('off', 'on')}
    assert parts['table']['passed'] and len(parts['table']['cases'][0]['modes']) == 3
    assert parts['graphs']['passed'] and parts['graphs']['same']['compared'] > 5
    times = parts['graphs']['stage_seconds']
    assert set(times) == {'off', 'on'} and {'denoise', 'decode step of 8'} < set(times['on'])
    assert parts['compile']['passed'] and len(compiled) == 7
    times = parts['compile']['stage_seconds']
    assert set(times) == {'off', 'on'} and {'prefill', 'denoise', 'decode step of 8'} < set(times['on'])
    assert code == 0


def test_part_that_fails_leaves_the_others(model_file, tmp_path, monkeypatch, capsys):
    file = tmp_path / 'result.json'

    def broken(_):
        raise RuntimeError('no such kernel')

    monkeypatch.setattr(gpu_check, 'correctness', broken)
    assert gpu_check.main(['--device', 'cpu', '--parts', 'correctness', 'table', '--model', model_file, '--rounds', '1',
                           '--text-length', '2', '--denoise-steps', '1', '--json', str(file)]) == 1
    parts = json.loads(file.read_text())['parts']
    assert parts['correctness']['error'] == 'RuntimeError: no such kernel' and parts['table']['passed']


def test_machine_without_the_device_is_told(tmp_path, capsys):
    if torch.cuda.is_available():
        pytest.skip('this machine has a GPU')
    assert gpu_check.main(['--json', str(tmp_path / 'result.json')]) == 2
    assert "device 'cuda' is not available" in capsys.readouterr().err
