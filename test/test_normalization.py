"""Statistics and the maps to and from a model's own range."""

import json
from pathlib import Path

import numpy as np
import pytest

from oxygen_ros.errors import ConfigError
from oxygen_ros.robot.normalization import Normalizer, Statistics, StatisticsMode, load_statistics

CASES = Path(__file__).parent / 'data' / 'cases'
QUANTILE, MEAN_STD = StatisticsMode.QUANTILE, StatisticsMode.MEAN_STD


def read(case, name):
    return json.loads((CASES / case / name).read_text())


def from_file(case, name, mode, size, key='action'):
    return load_statistics(CASES / case / name, key, mode, size)


@pytest.mark.parametrize('mode, expected', [(QUANTILE, 'quantile'), (MEAN_STD, 'meanstd')])
def test_actions_are_unnormalised(mode, expected):
    case = '51-actions-published-without-unnormalising'
    actions = Normalizer(from_file(case, 'norm_stats.json', mode, 3)).unnormalize(read(case, 'model_output.json'))
    assert actions == pytest.approx(np.array(read(case, 'case.json')['expected'][expected]), abs=1e-5)


def test_constant_dimension_stays_finite_and_keeps_its_value():
    case = '48-constant-dimension-in-stats'
    inputs, expected = read(case, 'input.json'), read(case, 'case.json')['expected']
    state = Normalizer(from_file(case, 'norm_stats.json', QUANTILE, 5, 'state')).normalize(inputs['state'])
    others = expected['state_quantile_others']
    assert state[3] == -1.0
    assert np.delete(state, 3) == pytest.approx([value for value in others if value is not None], abs=1e-3)
    assert Normalizer(from_file(case, 'norm_stats.json', MEAN_STD, 5, 'state')).normalize(inputs['state'])[3] == 0.0
    for mode, key in ((QUANTILE, 'action_quantile'), (MEAN_STD, 'action_meanstd')):
        action = Normalizer(from_file(case, 'norm_stats.json', mode, 5)).unnormalize(inputs['model_action'])
        assert action == pytest.approx(expected[key], abs=expected['tolerance'])
        assert action[3] == 1.5688


@pytest.mark.parametrize('values', [np.nan, np.inf, -np.inf])
def test_constant_dimension_does_not_hide_a_faulty_number(values):
    normalizer = Normalizer(Statistics(QUANTILE, np.zeros(1), np.zeros(1)))
    assert np.isnan(normalizer.unnormalize(np.full((2, 1), values))).all()
    assert np.isnan(normalizer.normalize(np.full((2, 1), values))).all()


def test_formulas_are_those_of_openpi():
    content = {'q01': [-1.0], 'q99': [2.0], 'mean': [0.5], 'std': [0.1]}
    statistics = Statistics.from_mapping(content, QUANTILE, 1, 'test')
    assert Normalizer(statistics).normalize([0.25])[0] == pytest.approx((0.25 + 1) / (3 + 1e-6) * 2 - 1, abs=1e-15)
    assert Normalizer(statistics).unnormalize([0.5])[0] == pytest.approx(1.5 / 2 * (3 + 1e-6) - 1, abs=1e-15)
    assert Normalizer(statistics, epsilon=0).normalize([2.0])[0] == 1.0
    statistics = Statistics.from_mapping(content, MEAN_STD, 1, 'test')
    assert Normalizer(statistics).normalize([0.25])[0] == pytest.approx(-0.25 / (0.1 + 1e-6), abs=1e-15)
    assert Normalizer(statistics).unnormalize([2.0])[0] == pytest.approx(2 * (0.1 + 1e-6) + 0.5, abs=1e-15)


@pytest.mark.parametrize('mode', StatisticsMode)
def test_unnormalise_reverses_normalise_without_clipping(mode):
    generator = np.random.default_rng(0)
    statistics = Statistics(mode, generator.normal(size=7), generator.uniform(0.1, 3, size=7))
    values = generator.normal(scale=5, size=(4, 7))
    normalizer = Normalizer(statistics)
    assert normalizer.unnormalize(normalizer.normalize(values)) == pytest.approx(values, abs=1e-12)
    assert normalizer.normalize(values.astype(np.float32)).dtype == np.float64


def test_values_of_another_width_are_refused():
    with pytest.raises(ValueError, match='for statistics of 2 numbers'):
        Normalizer(Statistics(QUANTILE, np.zeros(2), np.ones(2))).normalize(np.zeros((4, 3)))


@pytest.mark.parametrize('mode', [QUANTILE, MEAN_STD])
@pytest.mark.parametrize('name', ['stats_inf', 'stats_no_action', 'stats_empty', 'stats_broken'])
def test_missing_or_infinite_statistics_are_refused(name, mode):
    with pytest.raises(ConfigError, match=f'{name}.json.*(action|JSON)'):
        from_file('49-stats-missing-or-infinite', f'{name}.json', mode, 2)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(ConfigError, match='norm_stats.json: No such file'):
        load_statistics(tmp_path / 'norm_stats.json', 'state', QUANTILE, 2)


@pytest.mark.parametrize('mode', [QUANTILE, MEAN_STD])
def test_statistics_of_the_wrong_length_are_refused(mode):
    case = '50-stats-of-wrong-length'
    with pytest.raises(ConfigError, match='action: lists of different lengths: mean 32, std 29, q01 32, q99 7'):
        from_file(case, 'ragged.json', mode, 29)
    with pytest.raises(ConfigError, match=r'action\.\w+ has 7 numbers, but 29 are needed'):
        from_file(case, 'short.json', mode, 29)
    assert len(from_file(case, 'padded.json', mode, 29)) == 29


def test_a_tail_that_is_not_padding_is_refused():
    content = {'q01': [-1.0, -1.0], 'q99': [1.0, 1.0]}
    with pytest.raises(ConfigError, match='has 2 numbers, but 1 are needed, and the rest is not padding'):
        Statistics.from_mapping(content, QUANTILE, 1, 'test')


@pytest.mark.parametrize('content, problem', [
    ({'q01': [1.0], 'q99': [0.0]}, r'no range at index \[0\]'),
    ({'q01': [-1e308], 'q99': [1e308]}, r'no range at index \[0\]'),
    ({'q01': [0.0], 'q99': None}, 'q99 is missing'),
    ({'q01': ['0'], 'q99': [1.0]}, 'q01 must be a number or a list of numbers'),
    ({'q01': [True], 'q99': [1.0]}, 'q01 must be a number or a list of numbers'),
    ({'q01': [10**400], 'q99': [1.0]}, 'q01 must be a number or a list of numbers'),
    ({'q01': [[0.0]], 'q99': [1.0]}, 'q01 must be a number or a list of numbers'),
    ([0.0, 1.0], 'needs the lists q01 and q99'),
])
def test_faulty_statistics_name_key_and_reason(content, problem):
    with pytest.raises(ConfigError, match=f'robot.yaml.*{problem}'):
        Statistics.from_mapping(content, QUANTILE, 1, 'robot.yaml')


def test_negative_deviation_is_refused():
    with pytest.raises(ConfigError, match='mean and std are no range'):
        Statistics.from_mapping({'mean': [0.0], 'std': [-1.0]}, MEAN_STD, 1, 'test')


def test_statistics_keep_their_invariants():
    with pytest.raises(ValueError, match='shapes'):
        Statistics(QUANTILE, np.zeros(2), np.zeros(3))
    with pytest.raises(ValueError, match='finite'):
        Statistics(QUANTILE, np.array([np.inf]), np.zeros(1))
