"""Timeline: a picture of what the engine did during a few action cycles."""

from __future__ import annotations

from pathlib import Path

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from oxygen_ros.demo.cycles import Span, Trace

WINDOW = 1.5  # seconds shown
LANES = {'prefill': 'prefill\n(a frame)', 'denoise': 'denoise\n(an action)', 'text': 'extend / decode\n(texts)',
         'publish': 'publish\n(the chunk)'}
COLORS = {'prefill': '#4477aa', 'denoise': '#ee7733', 'extend': '#882255', 'publish': '#117733'}
DEADLINE = '#cc3311'
BATCHES = colormaps['YlGnBu']
SMALLEST_LABELLED = 0.02  # share of the width below which a run of decode steps gets no number


def draw_timeline(trace: Trace, path: Path, title: str) -> bool:
    """
    Draw the middle of a run.

    :param title: what ran; the time range is added.
    :return: False if the trace holds no cycle, so that there is nothing to draw.
    """
    if not trace.cycles:
        return False
    first, last = trace.cycles[0].begin, trace.cycles[-1].published
    start = max(first, (first + last) / 2 - WINDOW / 2)
    spans = [span for span in trace.spans if start <= span.end and span.start <= start + WINDOW]
    figure = Figure(figsize=(15, 5.2), layout='constrained')
    axes = figure.subplots()
    for number, lane in enumerate(LANES):
        own = [span for span in spans if (span.stage if span.stage in LANES else 'text') == lane]
        for span in own:
            color = _batch_color(span.branches, spans) if span.stage == 'decode' else COLORS[span.stage]
            # A chunk is handed out in microseconds: a line of a visible width stands for it.
            axes.broken_barh([(1e3 * (span.start - start), 1e3 * (span.end - span.start))], (number - 0.36, 0.72),
                             facecolors=color, edgecolors=color if lane == 'publish' else 'white',
                             linewidth=2.0 if lane == 'publish' else 0.4)
        if lane == 'text':
            _label_batches(axes, own, start, number)
    for deadline in trace.deadlines:
        if start <= deadline <= start + WINDOW:
            axes.axvline(1e3 * (deadline - start), color=DEADLINE, linestyle='--', linewidth=1.5)
    _finish(axes, spans, f'{title}, {start - first:.1f} to {start - first + WINDOW:.1f} s after the first action began')
    figure.savefig(path, dpi=110)
    return True


def _batch_color(branches: int, spans: list[Span]) -> tuple:
    most = max((span.branches for span in spans), default=1)
    return BATCHES(0.3 + 0.65 * branches / max(most, 1))


def _label_batches(axes: Axes, spans: list[Span], start: float, lane: int) -> None:
    """Write the batch size above each run of decode steps with the same number of texts."""
    decodes = [span for span in spans if span.stage == 'decode']
    index = 0
    while index < len(decodes):
        end = index
        while end + 1 < len(decodes) and decodes[end + 1].branches == decodes[index].branches \
                and decodes[end + 1].start - decodes[end].end < 0.01:
            end += 1
        left, right = max(decodes[index].start, start), min(decodes[end].end, start + WINDOW)
        if right - left > SMALLEST_LABELLED * WINDOW:
            axes.text(1e3 * ((left + right) / 2 - start), lane - 0.4, f'×{decodes[index].branches}', ha='center',
                      va='bottom', fontsize=9)
        index = end + 1


def _finish(axes: Axes, spans: list[Span], title: str) -> None:
    axes.set_yticks(range(len(LANES)), LANES.values(), fontsize=11)
    axes.set_ylim(len(LANES) - 0.4, -0.6)
    axes.set_xlim(0, 1e3 * WINDOW)
    axes.set_xlabel('time in ms', fontsize=11)
    axes.set_title(title, fontsize=12, loc='left')
    axes.grid(axis='x', color='#dddddd', linewidth=0.6)
    axes.set_axisbelow(True)
    batches = sorted({span.branches for span in spans if span.stage == 'decode'})
    handles = [Line2D([], [], color=DEADLINE, linestyle='--', label='action deadline'),
               Patch(facecolor=COLORS['extend'], label='extend: prompts of new texts'),
               *([Patch(facecolor='none', label='decode, texts in the batch:')] if batches else []),
               *(Patch(facecolor=_batch_color(batch, spans), label=f'×{batch}') for batch in batches)]
    axes.legend(handles=handles, loc='upper center', bbox_to_anchor=(0.5, -0.13), ncols=len(handles), frameon=False,
                columnspacing=1.2, handlelength=1.4)
