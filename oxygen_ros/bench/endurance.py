"""Endurance: over thousands of frames neither the time of a frame nor memory may grow."""

from __future__ import annotations

from oxygen_ros.bench.figures import median
from oxygen_ros.bench.measure import MIB, CaseRecord

PART = 300          # frames at the beginning and at the end that are compared, or a third of all
TIME_GROWTH = 0.03  # that counts as none
MEMORY_GROWTH = 0.02


def endurance(case: CaseRecord) -> dict:
    """
    Compare the last frames with the first ones.

    Time is CPU time, in which other programs show least. Memory is that of the process: the median of the last frames
    by that of the first, for the allocator takes and gives back a little all the time.
    """
    frames = len(case.memory)
    part = min(PART, max(1, frames // 3))
    first, last = median(case.memory[:part]), median(case.memory[-part:])
    result = {'frames': frames, 'part': part, 'memory_first': first, 'memory_last': last,
              'memory_growth': last / first - 1, 'modes': {}}
    for name, mode in case.modes.items():
        times = [frame.cpu for frame in mode.frames]
        begin, end = median(times[:part]), median(times[-part:])
        texts = max((call.branches for frame in mode.frames for call in frame.calls), default=0)
        result['modes'][name] = {'first': begin, 'last': end, 'growth': end / begin - 1, 'texts': texts,
                                 'kv_bytes_peak': mode.kv_peak, 'kv_bytes_pools': mode.kv_allocated}
    result['passed'] = (result['memory_growth'] <= MEMORY_GROWTH
                        and all(mode['growth'] <= TIME_GROWTH and mode['kv_bytes_peak'] <= mode['kv_bytes_pools']
                                for mode in result['modes'].values()))
    return result


def endurance_lines(result: dict) -> list[str]:
    """Return the comparison in words."""
    part = result['part']
    lines = [f'first against last {part} of {result["frames"]} frames: memory of the process '
             f'{result["memory_first"] / MIB:.1f} -> {result["memory_last"] / MIB:.1f} MiB '
             f'({100 * result["memory_growth"]:+.2f} %, at most {100 * MEMORY_GROWTH:.0f} %)']
    for name, mode in result['modes'].items():
        lines.append(f'  {name}: frame {1e3 * mode["first"]:.1f} -> {1e3 * mode["last"]:.1f} CPU ms '
                     f'({100 * mode["growth"]:+.2f} %, at most {100 * TIME_GROWTH:.0f} %), KV of up to {mode["texts"]} '
                     f'texts at once {mode["kv_bytes_peak"] / MIB:.1f} MiB, frame and branch pools '
                     f'{mode["kv_bytes_pools"] / MIB:.1f} MiB')
    return [*lines, 'passed' if result['passed'] else 'FAILED']
