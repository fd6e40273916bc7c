"""Pictures of results: throughput against latency, ablation, speed-up over the length of texts, timeline of a frame."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use('Agg')

import matplotlib.pyplot as plt

COLORS = {'isolated': '#9aa5b1', 'shared_kv': '#5b8def', 'continuous_batching': '#e07a3f'}
STAGE_COLORS = {'prefill': '#4c78a8', 'denoise': '#f58518', 'extend': '#b279a2', 'decode': '#54a24b',
                'engine': '#777777'}


def draw(result: dict, folder: Path) -> list[Path]:
    """Draw what the results of `oxygen_ros bench` allow; return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    cases = result['cases']
    name = result['config']['model'].rpartition('/')[2].removesuffix('.yaml')
    title = f'{name}, {result["config"]["dtype"]} on {result["config"]["device"]}'
    if result['random_weights']:
        title += ', random weights'
    pictures = {'ablation.png': _ablation, 'tradeoff.png': _tradeoff, 'timeline.png': _timeline}
    if len({case['workload']['text_length'] for case in cases}) > 1:
        pictures['speedup.png'] = _speedup
    files = []
    for file, picture in pictures.items():
        figure, axes = plt.subplots(figsize=(8, 4.5), layout='constrained')
        picture(axes, cases)
        axes.set_title(title, loc='left', fontsize=10)
        axes.spines[['top', 'right']].set_visible(False)
        figure.savefig(folder / file, dpi=130)
        plt.close(figure)
        files.append(folder / file)
    return files


def _ablation(axes: Any, cases: list[dict]) -> None:
    """Time of a frame by mode, divided into stages, of the first workload."""
    modes = cases[0]['modes']
    bottoms = [0.0] * len(modes)
    for stage, color in STAGE_COLORS.items():
        heights = [1e3 * mode['split_cpu'][stage] for mode in modes.values()]
        axes.bar(list(modes), heights, bottom=bottoms, color=color, label=stage, width=0.6)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights)]
    for index, mode in enumerate(modes.values()):
        ratio = mode.get('cpu_by_isolated')
        axes.annotate(f'{1e3 * mode["cpu"]["p50"]:.0f} ms' + (f' ({ratio:.2f})' if ratio else ''),
                      (index, bottoms[index]), ha='center', va='bottom')
    axes.set_ylabel('CPU ms per frame (median)')
    axes.legend(frameon=False, ncols=len(STAGE_COLORS), loc='upper center', bbox_to_anchor=(0.5, -0.08))


def _tradeoff(axes: Any, cases: list[dict]) -> None:
    """Text tokens per second over replans per second: each workload is a point."""
    for mode, color in COLORS.items():
        points = sorted((case['modes'][mode]['replans_per_second'], case['modes'][mode]['tokens_per_second'],
                         case['workload']) for case in cases if mode in case['modes'])
        if points:
            axes.plot([x for x, _, _ in points], [y for _, y, _ in points], 'o-', color=color, label=mode)
            for x, y, workload in points:
                axes.annotate(f'N{workload["text_length"]} k{workload["tokens_per_frame"]}', (x, y), fontsize=7,
                              xytext=(4, 4), textcoords='offset points')
    axes.set(xlabel='actions per second (replans)', ylabel='text tokens per second')
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)


def _speedup(axes: Any, cases: list[dict]) -> None:
    """How much faster than isolated a frame is, over the length of texts."""
    for mode, color in COLORS.items():
        series: dict[int, list[tuple[int, float]]] = {}
        for case in cases:
            ratio = case['modes'].get(mode, {}).get('cpu_by_isolated')
            if ratio:
                workload = case['workload']
                series.setdefault(workload['tokens_per_frame'], []).append((workload['text_length'], 1 / ratio))
        for tokens, points in series.items():
            label = f'{mode}, k={tokens}' if mode == 'continuous_batching' else mode
            points.sort()
            axes.plot([x for x, _ in points], [y for _, y in points], 'o-', color=color, label=label)
    axes.set(xlabel='tokens of a text, N', ylabel='speed-up over isolated (CPU time)')
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False)


def _timeline(axes: Any, cases: list[dict]) -> None:
    """When each call of the last frame ran, mode by mode."""
    modes = cases[0]['modes']
    for row, mode in enumerate(modes.values()):
        for call in mode['timeline']:
            axes.broken_barh([(1e3 * call['start'], 1e3 * call['wall'])], (row - 0.35, 0.7),
                             color=STAGE_COLORS[call['stage']], edgecolor='white', linewidth=0.4)
    axes.set_yticks(range(len(modes)), list(modes))
    axes.invert_yaxis()
    axes.set_xlabel('ms from the arrival of the frame (wall time)')
    stages = [stage for stage in STAGE_COLORS if stage != 'engine']
    handles = [plt.Rectangle((0, 0), 1, 1, color=STAGE_COLORS[stage]) for stage in stages]
    axes.legend(handles, stages, frameon=False, ncols=len(stages), loc='upper center', bbox_to_anchor=(0.5, -0.14))
