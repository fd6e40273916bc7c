"""Turns what was measured into figures, as JSON and as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

import numpy as np

from oxygen_ros.bench.figures import Figures, median, median_ratio
from oxygen_ros.bench.lane import FrameRecord
from oxygen_ros.bench.measure import CaseRecord, ModeRecord
from oxygen_ros.bench.probes import Probes, head
from oxygen_ros.models.interface import ModelSpec

STAGES = ('prefill', 'denoise', 'extend', 'decode')


def case_result(case: CaseRecord, spec: ModelSpec) -> dict:
    """Return the figures of a workload; times in seconds, sizes in bytes."""
    modes = {name: _mode_result(record, spec, case.probes) for name, record in case.modes.items()}
    base = case.modes.get('isolated')
    for name, record in case.modes.items():
        if base is not None:
            modes[name]['cpu_by_isolated'] = median_ratio(*_pairs(record, base, 'cpu'))
            modes[name]['wall_by_isolated'] = median_ratio(*_pairs(record, base, 'wall'))
    memory = case.memory
    workload = case.settings.workload
    result = {'workload': {**asdict(workload), 'arrivals': workload.arrivals.value,
                           'compile': case.settings.compile.value},
              'prefix_tokens': case.prefix_tokens, 'cameras': case.cameras,
              'on_cpu': case.settings.device == 'cpu',
              'process_bytes': {'first': memory[0], 'last': memory[-1], 'peak': max(memory)},
              'modes': modes}
    same = _same_texts(case.modes)
    return result if same is None else {**result, 'same_texts': same}


def _pairs(record: ModeRecord, base: ModeRecord, clock: str) -> tuple[list[float], list[float]]:
    return [getattr(frame, clock) for frame in record.frames], [getattr(frame, clock) for frame in base.frames]


def _mode_result(record: ModeRecord, spec: ModelSpec, probes: Probes) -> dict:
    frames = record.frames
    wall, cpu = [frame.wall for frame in frames], [frame.cpu for frame in frames]
    rate = 1 / median(wall)
    decoded = [call.branches for frame in frames for call in frame.calls if call.stage == 'decode']
    result = {
        'frames': len(frames), 'wall': Figures.of(wall).as_json(), 'cpu': Figures.of(cpu).as_json(),
        'action': Figures.of([frame.action_time for frame in frames]).as_json(),
        'replans_per_second': rate, 'chunk_actions_per_second': rate * spec.horizon,
        # A chunk is executed at the pace of its model, and replaced by the next one.
        'executed_actions_per_second': min(rate * spec.horizon, 1 / spec.action_period),
        'tokens_per_frame': float(np.mean([frame.tokens for frame in frames])),
        'tokens_per_second': sum(frame.tokens for frame in frames) / sum(wall),
        'first_token': _json(record.first_token), 'finished_text': _json(record.finished),
        'batch': float(np.mean(decoded)) if decoded else 0.0, 'batch_slots': record.slots,
        'kv_bytes': frames[-1].kv_bytes, 'kv_bytes_peak': record.kv_peak, 'kv_bytes_pools': record.kv_allocated,
        'split_wall': _split(frames, 'wall', probes.wall), 'split_cpu': _split(frames, 'cpu', probes.cpu),
        'timeline': _timeline(_usual(frames)),
        'joules': _json([frame.joules for frame in frames if frame.joules is not None]),
    }
    if record.bare:
        bare = [frame.cpu for frame in record.bare]
        result['bare_cpu'] = Figures.of(bare).as_json()
        result['bare_split_cpu'] = _split(record.bare, 'cpu', probes.cpu)
        result['engine_overhead_cpu'] = median_ratio(cpu, bare) - 1
        result['engine_overhead_wall'] = median_ratio(wall, [frame.wall for frame in record.bare]) - 1
    return result


def _json(values: Sequence[float]) -> dict | None:
    figures = Figures.of(values)
    return None if figures is None else figures.as_json()


def _split(frames: Sequence[FrameRecord], clock: str, probes: Mapping[str, Sequence[float]]) -> dict[str, float]:
    """
    Return the median seconds per frame of each stage; what is in none of them is the engine's.

    'vision' is a part of prefill and 'head' of decode, from what they take alone; missing where they are not known.
    """
    frames = [frame for frame in frames if frame.calls]
    result = {}
    for stage in STAGES:
        result[stage] = median([sum(getattr(call, clock) for call in frame.calls if call.stage == stage)
                                for frame in frames])
        if stage == 'prefill' and 'vision' in probes:
            result['vision'] = median(probes['vision']) * median([_count(frame, stage) for frame in frames])
        heads = {name: median(values) for name, values in probes.items() if name.startswith('head_')}
        if stage == 'decode' and heads:
            name = head(1) if max((call.branches for frame in frames for call in frame.calls), default=1) == 1 else (
                max(heads, key=lambda name: int(name.rpartition('_')[2])))
            result['head'] = heads[name] * median([_count(frame, stage) for frame in frames])
    result['engine'] = median([getattr(frame, clock) - sum(getattr(call, clock) for call in frame.calls)
                               for frame in frames])
    return result


def _usual(frames: Sequence[FrameRecord]) -> FrameRecord:
    """Return the frame, of those with calls, that took nearest to the median."""
    middle = median([frame.wall for frame in frames])
    return min((frame for frame in frames if frame.calls), key=lambda frame: abs(frame.wall - middle))


def _timeline(frame: FrameRecord) -> list[dict]:
    """Return the calls of a frame; `start` in seconds from its arrival."""
    return [{'stage': call.stage, 'branches': call.branches, 'start': call.start - frame.began, 'wall': call.wall}
            for call in frame.calls]


def _count(frame: FrameRecord, stage: str) -> int:
    return sum(call.stage == stage for call in frame.calls)


def _same_texts(modes: Mapping[str, ModeRecord]) -> float | None:
    """
    Return the share of texts that are the same in all modes, None if there is nothing to compare.

    Rounding differs with the batch. With random weights, whose tokens are nearly equal in probability, so may a token,
    and with it all that come after.
    """
    ids = set.intersection(*(set(record.texts) for record in modes.values()))
    if len(modes) < 2 or not ids:
        return None
    return sum(len({record.texts[number] for record in modes.values()}) == 1 for number in ids) / len(ids)
