"""Rates and quantiles over a moving window, counters since a reset."""

import pytest

from oxygen_ros.engine.statistics import WINDOW, Statistics

STATE = dict.fromkeys(('running', 'waiting', 'frames_resident', 'kv_bytes', 'kv_bytes_peak', 'kv_bytes_allocated',
                       'kv_bytes_budget', 'prefill', 'denoise', 'decode_step'), 0)


def test_rates_are_over_the_time_since_the_reset_at_first():
    statistics = Statistics(100.0)
    for i in range(4):
        statistics.chunk(100.5 + i * 0.5, -0.01, 0.1)
        statistics.decoded(100.5 + i * 0.5, 3)
    status = statistics.snapshot(102.0, **STATE)
    assert (status.window, status.action_rate, status.tokens_per_second) == pytest.approx((2.0, 2.0, 6.0))


def test_what_is_older_than_the_window_is_forgotten_but_counted():
    statistics = Statistics(0.0)
    statistics.chunk(1.0, 5.0, 0.1)
    statistics.decoded(1.0, 7)
    for i in range(20):
        statistics.chunk(20.0 + i * 0.5, -0.1, 0.2)
        statistics.decoded(20.0 + i * 0.5, 1)
    status = statistics.snapshot(29.5, **STATE)
    assert (status.window, status.action_rate, status.tokens_per_second) == (WINDOW, 2.0, 2.0)
    assert status.lateness_max == pytest.approx(-0.1)
    assert (status.counters.chunks, status.counters.tokens, status.counters.deadline_misses) == (21, 27, 1)


def test_chunk_is_late_only_after_its_deadline():
    statistics = Statistics(0.0)
    for lateness in (-0.1, 0.0, 0.001):
        statistics.chunk(1.0, lateness, 0.1)
    assert statistics.counters.deadline_misses == 1


def test_lateness_quantiles():
    statistics = Statistics(0.0)
    for i in range(101):
        statistics.chunk(1.0, i / 100, 0.1 + i / 1000)
    status = statistics.snapshot(2.0, **STATE)
    assert (status.lateness_p50, status.lateness_p99, status.lateness_max, status.cycle) == pytest.approx(
        (0.5, 0.99, 1.0, 0.15))


def test_empty_window_has_figures_too():
    status = Statistics(0.0).snapshot(0.0, **STATE)
    assert (status.action_rate, status.lateness_max, status.cycle, status.tokens_per_second) == (0, 0, 0, 0)


def test_snapshot_does_not_change_afterwards():
    statistics = Statistics(0.0)
    status = statistics.snapshot(1.0, **STATE)
    statistics.counters.chunks += 1
    assert status.counters.chunks == 0
    statistics.reset(2.0)
    assert statistics.counters.chunks == 0


def test_window_does_not_grow_when_nobody_looks():
    statistics = Statistics(0.0)
    for i in range(3000):
        statistics.decoded(i * 0.1, 1)
        statistics.chunk(i * 0.1, 0.0, 0.1)
    assert len(statistics._windows.tokens) <= WINDOW / 0.1 + 2
    assert len(statistics._windows.chunks) <= WINDOW / 0.1 + 2
