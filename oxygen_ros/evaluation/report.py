"""Results of an evaluation: figures by mode, how far the modes agree, as JSON and as a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from oxygen_ros.evaluation.exam import ExamResult
from oxygen_ros.evaluation.facts import NoteScore
from oxygen_ros.evaluation.figures import Mean, Share, shares

Figures = dict[str, Share | Mean]


def exam_figures(result: ExamResult) -> Figures:
    """Return the figures of an exam; see `ExamResult`."""
    figures: Figures = {'answers': _all(result.answers)}
    figures |= {f'answers: {kind}': share for kind, share in shares(result.answers).items()}
    figures['answers that are a matter of opinion, as the oracle'] = _all(result.unclear)
    figures['spoken lines'] = _all(result.lines)
    figures |= {f'spoken lines: {kind}': share for kind, share in shares(result.lines).items()}
    figures |= note_figures(result.notes)
    figures['facts of unclear notes, as the oracle'] = Share(sum(n.true for n in result.unclear_notes),
                                                             sum(n.said for n in result.unclear_notes))
    figures['error of the chunk'] = Mean(tuple(result.errors), 'rad')
    return figures


def note_figures(notes: Sequence[NoteScore]) -> Figures:
    """Return the figures of clear notes."""
    true, said, missing = (sum(getattr(note, name) for note in notes) for name in ('true', 'said', 'missing'))
    return {'facts of notes that are true': Share(true, said),
            'facts that notes should have and have': Share(true, true + missing),
            'notes without any mistake': Share(sum(n.true == n.said and not n.missing for n in notes), len(notes))}


def agreement(results: Mapping[str, ExamResult]) -> Figures:
    """Return how far the other modes agree with the first: texts that are equal, and the largest difference of chunks."""
    (first, one), *others = results.items()
    figures: Figures = {}
    for name, other in others:
        figures[f'{name} and {first}: equal texts'] = Share(
            sum(other.texts[key] == text for key, text in one.texts.items()), len(one.texts))
        figures[f'{name} and {first}: difference of chunks'] = Mean(tuple(
            float(np.abs(other.chunks[key] - chunk).max()) for key, chunk in one.chunks.items()))
    return figures


def plain(figures: Figures) -> dict:
    """Return figures as plain data."""
    return {name: {key: None if isinstance(value, float) and math.isnan(value) else value
                   for key, value in figure.to_dict().items()} for name, figure in figures.items()}


def table(modes: Mapping[str, Figures]) -> str:
    """Return figures of several modes as text, a line for each figure."""
    names = list(dict.fromkeys(name for figures in modes.values() for name in figures))
    width = max(map(len, names), default=0)
    lines = []
    for name in names:
        for number, (mode, figures) in enumerate(modes.items()):
            if name in figures:
                lines.append(f'{name if number == 0 else "":{width}}  {mode:19}  {figures[name].text}')
    return '\n'.join(lines)


def _all(results: Sequence[tuple[str, bool]]) -> Share:
    return Share(sum(right for _, right in results), len(results))
