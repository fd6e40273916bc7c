"""The picture of an offline run: commands, chunks, texts and memory over virtual time."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from oxygen_ros.models.interface import ModelSpec
from oxygen_ros.offline.outputs import Records

LINES = 8  # joints that are drawn with a name: those that move most
COLOURS = {'speech': '#1b6ca8', 'answer': '#c0392b', 'memory': '#2e8b57', 'subtask': '#8e5ea2'}
LANES = ('speech', 'answer', 'subtask', 'memory')
LONGEST = 28  # characters of a text in the picture


def draw(path: Path, records: Records, spec: ModelSpec, title: str, start_ns: int, end_ns: int) -> None:
    """
    Write the picture as a PNG file.

    :raises ModuleNotFoundError: Matplotlib is not installed.
    """
    import matplotlib
    matplotlib.use('Agg')
    from matplotlib import pyplot

    def seconds(time_ns: int) -> float:
        return (time_ns - start_ns) / 1e9

    figure, (joints, chunks, texts) = pyplot.subplots(
        3, 1, sharex=True, figsize=(13, 8), height_ratios=(4, 1, 3), layout='constrained')
    warning = ' - random weights, the output means nothing' if spec.random_weights else ''
    figure.suptitle(f'{title}: {spec.name}{warning}', fontsize=11)
    if records.command_times:
        times = [seconds(time) for time in records.command_times]
        positions = np.stack(records.command_positions)
        moved = np.argsort(-np.ptp(positions, axis=0), kind='stable')
        for column in moved[LINES:]:
            joints.plot(times, positions[:, column], color='0.85', linewidth=0.7)
        for column in moved[:LINES]:
            joints.plot(times, positions[:, column], linewidth=1.2, label=records.command_names[column])
        joints.legend(loc='center left', bbox_to_anchor=(1.0, 0.5), fontsize=8)
    joints.set_ylabel('commanded, rad')
    chunks.vlines([seconds(stamp) for _, stamp in records.frames], 0, 0.4, color='0.6', linewidth=0.8)
    chunks.vlines([seconds(chunk.published_ns) for chunk in records.chunks], 0.6, 1.0, color='#1b6ca8', linewidth=1.0)
    chunks.scatter([seconds(time) for time, _ in records.skipped], [0.8] * len(records.skipped), marker='x', s=16,
                   color='#c0392b')
    chunks.set_yticks([0.2, 0.8], ['frames', 'chunks'])
    chunks.set_ylim(-0.1, 1.1)
    for text in records.texts.values():
        row = LANES.index(text.task) if text.task in LANES else len(LANES)
        # Texts of one task that overlap lie above each other.
        y = row + 0.18 * (text.request_id % 4)
        begin, end = seconds(text.stamp_ns or text.first_ns), seconds(text.last_ns)
        texts.plot([begin, max(end, begin + 0.01)], [y, y], color=COLOURS.get(text.task, '0.5'), linewidth=2,
                   alpha=1.0 if text.finish in ('STOP', 'LENGTH') else 0.35)
        words = _words(text.text)
        texts.text(end, y, f' {words}', fontsize=7, va='center', clip_on=True, parse_math=False)
    for entry in records.memory:
        texts.scatter([seconds(entry.stamp_ns)], [LANES.index('memory')], marker='D', s=14, color=COLOURS['memory'])
    texts.set_yticks([row + 0.27 for row in range(len(LANES))], LANES)
    texts.set_ylim(-0.3, len(LANES))
    texts.set_xlabel('virtual time since the beginning, s')
    texts.set_xlim(0, max(seconds(end_ns), 0.1))
    figure.savefig(path, dpi=110, metadata={'Software': None})
    pyplot.close(figure)


def _words(text: str) -> str:
    """Return the beginning of a text in one line, with what a font can draw."""
    line = ''.join(letter if ' ' <= letter <= '~' else '.' for letter in ' '.join(text.split()))
    return line if len(line) <= LONGEST else line[:LONGEST - 3] + '...'
