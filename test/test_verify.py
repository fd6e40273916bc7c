"""`oxygen_ros verify`: the golden cases pass through engine and cache, and what is wrong is found."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from oxygen_ros.cli import main
from oxygen_ros.engine.scheduler import Mode
from oxygen_ros.verify.main import verify
from oxygen_ros.verify.report import Report, Tolerance

GOLDEN = Path(__file__).parent / 'data' / 'golden' / 'pi05'


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def copy(tmp_path):
    """Return a case directory that may be changed, with the case's openpi file only."""
    for file in (GOLDEN / 'b_gqa_maskedcam').iterdir():
        if file.name != 'model.lerobot.safetensors':
            shutil.copy(file, tmp_path)
    return tmp_path


@pytest.mark.parametrize('mode', list(Mode), ids=lambda mode: mode.value)
@pytest.mark.parametrize('case', ['a_mqa3cam', 'b_gqa_maskedcam'])
def test_golden_cases_pass_in_every_mode(case, mode):
    branches = [1, 3, 5, 8] if mode is Mode.CONTINUOUS_BATCHING else [3]
    report = verify(GOLDEN / case, [mode], branches)
    assert report.passed, [check.as_dict() for check in report.checks.values() if not check.passed]
    sections = {section for section, _, _ in report.checks}
    names = {name for section, name, _ in report.checks if 'bidirectional' in section}
    assert len(sections) == 2 * (2 if case.startswith('b') else 1)  # prefix masks, and formats of the weights
    assert {'actions.n10', 'actions.n5', 'text_tokens', 'text_logprobs', 'prefix_k.0', 'prefix_hidden', 'eos_test',
            'rtc.guided_exp.actions.n10', 'rtc.trained_delay3.actions.n10', 'lerobot.velocity.t0.1'} <= names


def test_every_stored_quantity_is_compared():
    report = verify(GOLDEN / 'a_mqa3cam', [Mode.CONTINUOUS_BATCHING], [1])
    names = {name for _, name, _ in report.checks}
    left = []
    for file in ('oxygen', 'lerobot'):
        for key in load_file(GOLDEN / 'a_mqa3cam' / f'expected_{file}.safetensors'):
            name = key.partition('.')[2] if file == 'oxygen' else key
            if name not in names and f'lerobot.{name}' not in names:
                left.append(name)
    assert set(left) == {'text_tokens_peer_raw'}  # not a target: it shows a fault of the reference


def test_bfloat16_stays_within_the_guidance():
    report = verify(GOLDEN / 'b_gqa_maskedcam', [Mode.CONTINUOUS_BATCHING], [3], dtype='bfloat16')
    assert report.passed, [check.as_dict() for check in report.checks.values() if not check.passed]
    actions = [check for check in report.checks.values() if check.name == 'actions.n10']
    assert all(0 < check.relative < 0.0052 for check in actions)


def test_preprocessing_passes():
    assert verify(GOLDEN / 'preprocess', [], []).passed


def change_weights(folder, name, change):
    weights = load_file(folder / 'model.safetensors')
    weights[name] = change(weights[name])
    save_file(weights, folder / 'model.safetensors')


P = 'paligemma_with_expert.'


@pytest.mark.parametrize(('name', 'fails'), [
    (P + 'gemma_expert.model.layers.1.mlp.down_proj.weight', 'actions.n10'),
    (P + 'paligemma.model.language_model.norm.weight', 'text_logprobs'),
    (P + 'paligemma.model.language_model.layers.0.self_attn.k_proj.weight', 'prefix_k.0'),
    ('time_mlp_out.bias', 'adarms_cond.t0.5'),
    (P + 'paligemma.model.vision_tower.vision_model.embeddings.position_embedding.weight', 'image_embeds'),
])
def test_a_weight_that_is_off_fails_where_it_matters(copy, name, fails, capsys):
    change_weights(copy, name, lambda weight: weight + 0.05)
    assert main(['verify', str(copy), '--mode', 'shared_kv', '--branches', '1', '--json']) == 1
    result = json.loads(capsys.readouterr().out)
    assert not result['passed']
    assert fails in {check['name'] for check in result['checks'] if not check['passed']}


def test_an_unused_head_may_hold_anything(copy):
    change_weights(copy, P + 'gemma_expert.lm_head.weight', lambda weight: weight * float('nan'))
    assert verify(copy, [Mode.SHARED_KV], [1]).passed


@pytest.mark.parametrize('missing', ['model.safetensors', 'inputs.safetensors', 'config.json',
                                     'expected_oxygen.safetensors'])
def test_a_directory_that_is_no_case_is_wrong_use(copy, missing, capsys):
    (copy / missing).unlink()
    assert main(['verify', str(copy)]) == 2
    assert capsys.readouterr().err.startswith('error: ')


def test_weights_that_do_not_fit_are_wrong_use(copy, capsys):
    change_weights(copy, 'action_in_proj.bias', lambda weight: weight[:-1])
    assert main(['verify', str(copy)]) == 2
    assert 'action_in_proj.bias is [39], not [40]' in capsys.readouterr().err


def test_the_table_names_every_quantity(copy, capsys):
    assert main(['verify', str(copy), '--mode', 'shared_kv', '--branches', '2']) == 0
    out = capsys.readouterr().out
    assert 'rtc.trained_delay3.actions.n10' in out and 'FAIL' not in out and 'pass: ' in out


def test_numbers_of_branches_are_checked(capsys):
    assert main(['verify', str(GOLDEN / 'a_mqa3cam'), '--branches', '9']) == 2
    assert '1 to 8' in capsys.readouterr().err


def test_a_device_that_is_not_there_is_wrong_use(capsys):
    assert main(['verify', str(GOLDEN / 'a_mqa3cam'), '--device', 'toaster']) == 2
    assert "device 'toaster' is not available" in capsys.readouterr().err


def test_a_report_without_comparisons_does_not_pass():
    assert not Report().passed


def test_relative_errors_count_over_all_rows_together():
    report = Report()
    for row in (1.0, 100.0):
        expected = torch.tensor([row])
        report.close('s', 'n', 'm', expected + 0.1, expected, Tolerance(0.0, 1.0, relative=0.002))
    assert report.passed  # 10 % of one row, 0.14 % of both
    report.close('s', 'n', 'm', torch.tensor([3.0]), torch.tensor([1.0]), Tolerance(0.0, 1.0, relative=0.5))
    assert not report.passed  # an element beyond atol


@pytest.mark.parametrize('got', [torch.tensor([float('nan')]), torch.zeros(2)])
def test_nan_and_other_shapes_fail(got):
    report = Report()
    report.close('s', 'n', 'm', got, torch.zeros(1), Tolerance(atol=1e9))
    assert not report.passed
