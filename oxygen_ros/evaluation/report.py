"""Results of an evaluation: figures by mode, how far the modes agree, as JSON and as a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from oxygen_ros.evaluation.closed_loop import EpisodeResult
from oxygen_ros.evaluation.exam import ExamResult
from oxygen_ros.evaluation.figures import Mean, Share, shares
from oxygen_ros.simulation.episode import Facts, Outcome

Figures = dict[str, Share | Mean]


def exam_figures(result: ExamResult) -> Figures:
    """Return the figures of an exam; see `ExamResult`."""
    figures: Figures = {'answers': _all(result.answers)}
    figures |= {f'answers: {kind}': share for kind, share in shares(result.answers).items()}
    figures['answers that are a matter of opinion, as the oracle'] = _all(result.unclear)
    figures['spoken lines'] = _all(result.lines)
    figures |= {f'spoken lines: {kind}': share for kind, share in shares(result.lines).items()}
    figures |= note_figures(result.notes)
    figures['notes without any mistake'] = Share(sum(result.whole_notes), len(result.whole_notes))
    figures['error of the chunk'] = Mean(tuple(result.errors), 'rad')
    return figures


def note_figures(notes: Sequence[Facts]) -> Figures:
    """Return the figures of notes: what they state is true, and the same when what they leave out counts as wrong."""
    true = sum(note.true for note in notes)
    return {'facts of notes': Share(true, sum(note.stated for note in notes)),
            'facts of notes, those left out counted as wrong': Share(true, sum(note.total for note in notes))}


def episode_figures(results: Sequence[EpisodeResult], action_rate: float) -> Figures:
    """
    Return the figures of episodes in closed loop.

    :param action_rate: chunks per second that were asked for.
    """
    figures: Figures = {}
    for kind in sorted({result.episode.kind for result in results}, reverse=True):
        mine = [result for result in results if result.episode.kind == kind]
        figures[f'success: {kind}'] = Share(sum(r.outcome is Outcome.SUCCESS for r in mine), len(mine))
        for outcome in Outcome:
            count = sum(r.outcome is outcome for r in mine)
            if count and outcome is not Outcome.SUCCESS:
                figures[f'{outcome.value}: {kind}'] = Share(count, len(mine))
    reached = [result for result in results if result.episode.kind == 'reach']
    figures['final distance'] = Mean(tuple(100 * result.distance for result in reached), 'cm')
    figures['time to success'] = Mean(tuple(r.seconds for r in reached if r.outcome is Outcome.SUCCESS), 's')
    figures['jerk'] = Mean(tuple(r.jerk for r in results), 'rad/s^3')
    figures['gap between chunks'] = Mean(tuple(gap for result in results for gap in result.gaps), 'rad')
    figures['chunks per second'] = Mean(tuple(result.chunks / result.seconds for result in results),
                                        f'of {action_rate:g}')
    answers = [answer for result in results for answer in result.answers]
    lines = [line for result in results for line in result.lines]
    notes = [note for result in results for note in result.notes]
    if answers or lines or notes:
        figures['answers'] = _all(answers)
        figures |= {f'answers: {kind}': share for kind, share in shares(answers).items()}
        figures['spoken lines'] = Share(sum(lines), len(lines))
        figures |= note_figures(notes)
    return figures


def agreement(results: Mapping[str, ExamResult]) -> Figures:
    """Return how far the other modes agree with the first: equal texts, and the largest difference of each chunk."""
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
