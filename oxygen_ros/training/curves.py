"""The curves of a run as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib

matplotlib.use('Agg')
from matplotlib import pyplot

LOSSES = (('text', 'text (cross entropy per token)'), ('action', 'action (velocity, squared error)'),
          ('patch', 'patches of the vision tower'))
HELD_OUT = (('all/text/answers', 'answers'), ('all/text/speech', 'spoken lines'), ('all/text/memory', 'memory notes'),
            ('all/patch_right', 'patches'))


def draw(lines: Sequence[dict], path: Path) -> None:
    """Draw losses of training (left) and figures on held-out frames (right) over steps, as a PNG."""
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4), layout='constrained')
    for key, label in LOSSES:
        points = [(line['step'], line[key]) for line in lines if key in line]
        if points:
            left.plot(*zip(*points), label=label, linewidth=1)
    left.set(xlabel='step', ylabel='loss', yscale='log', title='training')
    looks = [(line['step'], line['held_out']) for line in lines if line.get('held_out')]
    for key, label in HELD_OUT:
        points = [(step, 100 * figures[key]) for step, figures in looks if key in figures]
        if points:
            right.plot(*zip(*points), label=label, marker='.')
    right.set(xlabel='step', ylabel='right, %', ylim=(0, 101), title='held-out frames')
    for axes in (left, right):
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(fontsize='small')
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
