"""Figures of a measurement in real time, as JSON and as a table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from oxygen_ros.bench.figures import Figures
from oxygen_ros.bench.realtime import RealTimeSettings
from oxygen_ros.bench.realtime_lane import RealTimeRecord
from oxygen_ros.bench.settings import BenchSettings
from oxygen_ros.bench.table import milliseconds, rows, shares
from oxygen_ros.models.interface import ModelSpec


def real_time_result(settings: BenchSettings, real_time: RealTimeSettings, period: float,
                     records: dict[str, RealTimeRecord], spec: ModelSpec) -> dict:
    """Return the figures; times in seconds, sizes in bytes."""
    workload = settings.workload
    clock = 'cpu' if real_time.cpu_time else 'wall'
    load = 'permanent' if real_time.permanent else workload.arrivals.value
    return {'workload': {'text_length': workload.text_length, 'denoise_steps': workload.denoise_steps, 'load': load,
                         'period': period, 'rate': None if real_time.permanent else real_time.rate or 1 / period,
                         'branches': real_time.branches, 'clock': clock, 'compile': settings.compile.value},
            'modes': {name: _mode_result(record, period, spec, clock) for name, record in records.items()}}


def executed_actions(published: Sequence[Sequence[float]], horizon: int, period: float) -> tuple[int, float]:
    """
    Return how many actions were executed, and in how many seconds: those of a chunk until the next one comes.

    :param published: times of chunks, for each block. :param period: between two actions of a chunk.
    """
    gaps = [gap for times in published for gap in np.diff(times)]
    return int(sum(min(horizon, round(gap / period)) for gap in gaps)), float(sum(gaps))


def _mode_result(record: RealTimeRecord, period: float, spec: ModelSpec, clock: str) -> dict:
    actions, seconds = executed_actions(record.published, spec.horizon, spec.action_period)
    decoded = [call.branches for call in record.calls if call.stage == 'decode']
    lateness = Figures.of(record.lateness)
    return {
        'seconds': record.time, 'due': record.due, 'chunks': len(record.lateness),
        'late': sum(late > 0 for late in record.lateness),
        'lateness': lateness and lateness.as_json(),
        'lateness_p99_of_period': lateness and lateness.p99 / period,
        'replans_per_second': len(record.lateness) / record.time,
        'executed_actions_per_second': actions / seconds if seconds else 0.0,
        'tokens_per_second': record.tokens / record.time, 'cpu_share': record.cpu / record.time,
        'first_token': _json(record.first_token), 'finished_text': _json(record.finished),
        'texts_finished': len(record.finished), 'texts_unfinished': record.unfinished,
        'batch': float(np.mean(decoded)) if decoded else 0.0,
        'kv_bytes_peak': record.kv_peak, 'kv_bytes_pools': record.kv_allocated,
        'split_share': {stage: sum(getattr(call, clock) for call in record.calls if call.stage == stage) / record.time
                        for stage in ('prefill', 'denoise', 'extend', 'decode')},
    }


def _json(values: Sequence[float]) -> dict | None:
    figures = Figures.of(values)
    return None if figures is None else figures.as_json()


def real_time_table(result: dict) -> str:
    """Return the table: a column per mode."""
    modes, workload = result['modes'], result['workload']

    def line(name: str, cell) -> tuple[str, list[str]]:
        return name, [cell(mode) for mode in modes.values()]

    lines = [line('actions due/made/late', lambda m: f'{m["due"]}/{m["chunks"]}/{m["late"]}'),
             line('lateness, ms p50/p99/max', lambda m: milliseconds(m['lateness'], ('p50', 'p99', 'max'))),
             line('  p99 of the period', lambda m: shares(m['lateness_p99_of_period'])),
             line('replans per s', lambda m: f'{m["replans_per_second"]:.2f}'),
             line('executed actions per s', lambda m: f'{m["executed_actions_per_second"]:.1f}'),
             line('text tokens per s', lambda m: f'{m["tokens_per_second"]:.1f}'),
             line('first token, ms p50/p99', lambda m: milliseconds(m['first_token'], ('p50', 'p99'))),
             line('finished text, ms p50/p99', lambda m: milliseconds(m['finished_text'], ('p50', 'p99'))),
             line('texts finished/unfinished', lambda m: f'{m["texts_finished"]}/{m["texts_unfinished"]}'),
             line('decode batch (mean)', lambda m: f'{m["batch"]:.1f}'),
             line('CPU of the process', lambda m: f'{100 * m["cpu_share"]:.0f} %')]
    for stage in next(iter(modes.values()))['split_share']:
        lines.append(line(f'  {stage}, of the time',
                          lambda m, stage=stage: f'{100 * m["split_share"][stage]:.0f} %'))
    title = (f'N={workload["text_length"]} S={workload["denoise_steps"]} {workload["load"]}, '
             f'every {1e3 * workload["period"]:.0f} ms' + ' of CPU time' * (workload['clock'] == 'cpu'))
    return rows(title, list(modes), lines)
