"""Predictions of what the stages take."""

import pytest

from oxygen_ros.engine.cost_model import CostModel, Stage


def test_what_was_never_measured_costs_nothing():
    assert CostModel().predict(Stage.DECODE, 5) == 0.0


def test_prediction_comes_to_the_mean_when_nothing_varies():
    costs = CostModel()
    for _ in range(50):
        costs.observe(Stage.PREFILL, 1, 0.02)
    assert costs.predict(Stage.PREFILL) == pytest.approx(0.02, rel=1e-3)


def test_prediction_covers_the_slow_case_of_what_varies():
    costs = CostModel()
    for i in range(60):
        costs.observe(Stage.DENOISE, 1, 0.02 if i % 2 else 0.04)
    assert costs.predict(Stage.DENOISE, deviations=0) == pytest.approx(0.03, rel=0.1)
    assert 0.04 <= costs.predict(Stage.DENOISE) < 0.06


def test_first_measurements_are_averaged():
    costs = CostModel()
    for seconds in (0.02, 0.01, 0.01, 0.01):
        costs.observe(Stage.DECODE, 1, seconds)
    assert costs.predict(Stage.DECODE, deviations=0) == pytest.approx(0.0125)


def test_stages_are_apart():
    costs = CostModel()
    costs.observe(Stage.DECODE, 1, 1.0)
    assert costs.predict(Stage.EXTEND, 1) == 0.0


def test_one_hiccup_does_not_stop_everything():
    costs = CostModel()
    for _ in range(20):
        costs.observe(Stage.DECODE, 1, 0.01)
    costs.observe(Stage.DECODE, 1, 5.0)
    assert costs.predict(Stage.DECODE, 1) < 0.04
    for _ in range(20):
        costs.observe(Stage.DECODE, 1, 0.01)
    assert costs.predict(Stage.DECODE, 1) < 0.02


def test_a_lasting_change_is_learnt():
    costs = CostModel()
    for _ in range(20):
        costs.observe(Stage.DECODE, 1, 0.01)
    for _ in range(40):
        costs.observe(Stage.DECODE, 1, 0.1)
    assert costs.predict(Stage.DECODE, 1, deviations=0) == pytest.approx(0.1, rel=0.05)


def test_hiccup_in_the_first_measurement_of_a_size_is_told_by_its_neighbours():
    costs = CostModel()
    for size in (1, 2, 4):
        for _ in range(10):
            costs.observe(Stage.DECODE, size, 0.01)
    costs.observe(Stage.DECODE, 3, 2.0)
    assert costs.predict(Stage.DECODE, 3) <= 0.06 + 1e-9


def test_what_is_put_off_again_and_again_is_trusted_to_its_mean():
    costs = CostModel()
    for seconds in (0.01, 0.05, 0.01, 0.05):
        costs.observe(Stage.EXTEND, 4, seconds)
        costs.observe(Stage.DENOISE, 1, seconds)
    before = costs.predict(Stage.EXTEND, 4), costs.predict(Stage.DENOISE)
    for _ in range(10):
        costs.relax([Stage.EXTEND])
    assert costs.predict(Stage.EXTEND, 4) == pytest.approx(costs.predict(Stage.EXTEND, 4, deviations=0), rel=0.01)
    assert costs.predict(Stage.EXTEND, 4) < before[0]
    assert costs.predict(Stage.DENOISE) == before[1]


def test_between_measured_sizes_it_interpolates_above_it_scales_below_it_takes_the_smallest():
    costs = CostModel()
    costs.observe(Stage.DECODE, 2, 0.010)
    costs.observe(Stage.DECODE, 6, 0.018)
    assert [costs.predict(Stage.DECODE, size, deviations=0) for size in (1, 2, 3, 5, 6)] == pytest.approx(
        [0.010, 0.010, 0.012, 0.016, 0.018])
    assert costs.predict(Stage.DECODE, 48, deviations=0) == pytest.approx(0.018 * 8)


def test_sizes_never_make_a_prediction_negative_or_drop_where_costs_grow():
    costs = CostModel()
    for size, seconds in ((1, 0.004), (8, 0.006), (40, 0.02)):
        costs.observe(Stage.EXTEND, size, seconds)
    predicted = [costs.predict(Stage.EXTEND, size) for size in range(1, 200)]
    assert predicted == sorted(predicted) and predicted[0] > 0


def test_slowest_of_the_last_actions_is_remembered_for_longer_than_the_deviation():
    costs = CostModel()
    for number in range(70):
        costs.observe(Stage.ACTION, 1, 0.3 if number == 20 else 0.2)
    assert costs.predict(Stage.ACTION) < 0.21
    assert costs.slow(Stage.ACTION) == pytest.approx(0.3, rel=0.01)
    for _ in range(100):
        costs.observe(Stage.ACTION, 1, 0.2)
    assert costs.slow(Stage.ACTION) == pytest.approx(0.2, rel=0.01)


def test_slow_is_never_quicker_than_predicted():
    costs = CostModel()
    costs.observe(Stage.ACTION, 1, 0.2)
    assert costs.slow(Stage.ACTION) == costs.predict(Stage.ACTION)
    assert costs.slow(Stage.DENOISE) == 0.0


def test_slowest_actions_can_be_forgotten():
    costs = CostModel()
    for number in range(100):
        costs.observe(Stage.ACTION, 1, 0.4 if 30 <= number < 40 else 0.2)
    assert costs.slow(Stage.ACTION) > 0.35
    for _ in range(10):
        costs.forget_slowest(Stage.ACTION)
    assert costs.slow(Stage.ACTION) < 0.25
