"""Workloads and figures of the benchmark: arrivals, how many texts run at once, quantiles, energy, endurance."""

from __future__ import annotations

import numpy as np
import pytest

from oxygen_ros.bench.endurance import endurance, endurance_lines
from oxygen_ros.bench.energy import EnergyMeter
from oxygen_ros.bench.figures import Figures, median_ratio
from oxygen_ros.bench.lane import FrameRecord
from oxygen_ros.bench.measure import CaseRecord, ModeRecord
from oxygen_ros.bench.realtime import arrival_times
from oxygen_ros.bench.settings import BenchSettings
from oxygen_ros.bench.workload import Arrivals, Workload, most_running
from oxygen_ros.errors import ConfigError


@pytest.mark.parametrize('kind', Arrivals)
def test_arrivals_are_the_same_for_the_same_seed_and_one_text_of_the_length_per_frame_on_average(kind):
    workload = Workload(text_length=20, arrivals=kind, seed=3)
    schedule = workload.schedule(4000)
    assert schedule == workload.schedule(4000)
    assert np.mean([len(lengths) for lengths in schedule]) == pytest.approx(1, rel=0.05)
    assert np.mean([n for lengths in schedule for n in lengths]) == pytest.approx(20, rel=0.05)
    if kind in (Arrivals.POISSON, Arrivals.MIXED):
        assert schedule != Workload(text_length=20, arrivals=kind, seed=4).schedule(4000)


def test_arrivals_differ_in_kind():
    schedules = {kind: Workload(text_length=20, arrivals=kind, burst=3).schedule(9) for kind in Arrivals}
    assert schedules[Arrivals.UNIFORM] == [[20]] * 9
    assert schedules[Arrivals.BURSTY] == [[20] * 3, [], []] * 3
    assert {len(lengths) for lengths in schedules[Arrivals.POISSON]} >= {0, 1, 2}
    assert len({lengths[0] for lengths in schedules[Arrivals.MIXED]}) > 3


def test_steady_batch_is_length_by_tokens_per_frame():
    assert most_running([[30]] * 20, 5) == 6
    assert most_running([[5]] * 20, 5) == 1
    assert most_running([[31]] * 20, 5) == 6  # the first token comes with the start
    assert most_running([[32]] * 20, 5) == 7
    assert most_running([[10, 10], [], [10]], 3) == 3
    assert most_running([[1, 1, 1]], 5) == 3
    assert most_running([[], []], 5) == 1


@pytest.mark.parametrize('kind', Arrivals)
def test_arrival_times_ascend_and_keep_the_rate(kind):
    times = arrival_times(kind, rate=5.0, seconds=400.0, length=12, burst=4, seed=1)
    assert times == arrival_times(kind, rate=5.0, seconds=400.0, length=12, burst=4, seed=1)
    assert [time for time, _ in times] == sorted(time for time, _ in times)
    assert len(times) == pytest.approx(2000, rel=0.05) and times[-1][0] < 400
    assert np.mean([length for _, length in times]) == pytest.approx(12, rel=0.05)


@pytest.mark.parametrize('field', ['text_length', 'tokens_per_frame', 'denoise_steps', 'burst', 'prompt_tokens'])
def test_workload_refuses_what_is_no_work(field):
    with pytest.raises(ConfigError, match=f'{field} is 0'):
        Workload(**{field: 0})


def test_figures_are_those_of_hand_made_numbers():
    figures = Figures.of([float(n) for n in range(1, 102)])
    assert figures.as_json() == {'count': 101, 'mean': 51, 'p50': 51, 'p95': 96, 'p99': 100, 'max': 101}
    assert Figures.of([]) is None


def test_ratio_is_that_of_pairs():
    # Both see a machine that gets three times slower: the ratio stays.
    assert median_ratio([1.0, 3.0, 2.0], [2.0, 6.0, 4.0]) == 0.5
    with pytest.raises(ValueError):
        median_ratio([1.0], [1.0, 2.0])


def rapl(folder, microjoules, limit=1_000_000):
    zone = folder / 'intel-rapl:0'
    zone.mkdir(exist_ok=True)
    (zone / 'energy_uj').write_text(str(microjoules))
    (zone / 'max_energy_range_uj').write_text(str(limit))
    part = folder / 'intel-rapl:0:0'  # is in the package already
    part.mkdir(exist_ok=True)
    (part / 'energy_uj').write_text(str(5 * microjoules))


def test_energy_is_read_from_the_processor_and_survives_its_overflow(tmp_path):
    rapl(tmp_path, 900_000)
    meter = EnergyMeter('cpu', tmp_path)
    assert meter.available
    before = meter.read()
    rapl(tmp_path, 950_000)
    assert meter.used(before, meter.read()) == pytest.approx(0.05)
    rapl(tmp_path, 100_000)
    assert meter.used(before, meter.read()) == pytest.approx(0.2)


def test_energy_is_not_made_up_where_the_platform_does_not_tell(tmp_path):
    meter = EnergyMeter('cpu', tmp_path)
    assert not meter.available and meter.used(meter.read(), meter.read()) is None


def long_run(times, memory, kv_peak=10):
    mode = ModeRecord(frames=[FrameRecord(i, time, time, 5) for i, time in enumerate(times)], kv_peak=kv_peak,
                      kv_allocated=10)
    return CaseRecord(BenchSettings(), {'continuous_batching': mode}, 200, 3, None, list(memory))


def test_endurance_passes_what_stays_the_same():
    result = endurance(long_run([1.0, 1.1, 0.9] * 400, [100, 101] * 600))
    assert result['passed'] and result['part'] == 300 and endurance_lines(result)[-1] == 'passed'


@pytest.mark.parametrize('case', [
    long_run([1 + i / 10000 for i in range(1200)], [100] * 1200),
    long_run([1.0] * 1200, [100 + i / 100 for i in range(1200)]),
    long_run([1.0] * 1200, [100] * 1200, kv_peak=11)], ids=['time', 'memory', 'KV'])
def test_endurance_fails_what_grows(case):
    result = endurance(case)
    assert not result['passed'] and endurance_lines(result)[-1] == 'FAILED'
