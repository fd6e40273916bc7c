"""Verdicts: how true what happened in the simulator was, for summary.json and as rows of the table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from oxygen_ros.demo.events import Event, Kind, Verdict
from oxygen_ros.demo.ledger import NANOSECONDS, Ledger, Told
from oxygen_ros.simulation.episode import Outcome


def verdicts_of(ledger: Ledger, began_ns: int) -> dict[str, Any]:
    """
    Return what was told and said with what is so, for summary.json. True, false, and null for what has no one answer.

    :param began_ns: time of the simulator from which seconds are counted.
    """
    def seconds(time_ns: int) -> float:
        return round((time_ns - began_ns) / NANOSECONDS, 2)

    def texts(kind: Kind) -> list[dict[str, Any]]:
        return [{'seconds': seconds(event.time_ns), 'text': event.text, 'true': event.verdict.value,
                 **({'detail': event.detail} if event.detail else {})} for event in ledger.events if event.kind is kind]

    asked = {event.number: event for event in ledger.events if event.kind is Kind.ASKED}
    answers = [{'question': asked[event.number].text, **answer} for event, answer in zip(
        (event for event in ledger.events if event.kind is Kind.ANSWERED), texts(Kind.ANSWERED))]
    objects = ledger.truth.objects if ledger.truth is not None else ()
    facts = sum(fact.true for fact in ledger.facts), sum(fact.total for fact in ledger.facts)
    return {
        'simulated_seconds': seconds(ledger.now_ns),
        'scene': [f'{item.name} {item.region}' for item in objects],
        'told': [_deed(told, seconds(told.since_ns)) for told in ledger.told],
        'answers': answers,
        'spoken_lines': texts(Kind.SAID),
        'notes': texts(Kind.NOTED),
        'recalled': texts(Kind.RECALLED),
        'tally': {
            'instructions': [sum(told.outcome == Outcome.SUCCESS.value for told in ledger.told),
                             sum(told.outcome not in (None, 'cut short') for told in ledger.told)],
            'answers': _tally(ledger.events, Kind.ANSWERED), 'spoken_lines': _tally(ledger.events, Kind.SAID),
            'notes': _tally(ledger.events, Kind.NOTED), 'facts_of_notes': list(facts),
            'recalled': _tally(ledger.events, Kind.RECALLED)}}


def verdict_rows(summary: dict[str, Any]) -> list[tuple[str, str, Verdict]]:
    """
    Return rows for the table that people read: name, text, whether it is as it should be.

    :param summary: what `verdicts_of` gave, and simulated_time_speed.
    """
    rows = [('scene', ', '.join(summary['scene']), Verdict.OPEN)]
    rows += [('told', f'{told["instruction"]}: {_words(told)}', _verdict(told)) for told in summary['told']]
    for answer in summary['answers']:
        detail = f' ({answer["detail"]})' if 'detail' in answer else ''
        rows.append(('asked', f'{answer["question"]}: {answer["text"]}{detail}', Verdict(answer['true'])))
    rows.append(('simulated time', f'{summary["simulated_seconds"]:.1f} s, {summary["simulated_time_speed"]:.2f} times '
                                   'as quick as real time', Verdict.OPEN))
    tally = summary['tally']
    for name, key in (('instructions', 'instructions'), ('answers', 'answers'), ('spoken lines', 'spoken_lines'),
                      ('facts of notes', 'facts_of_notes'), ('recalled', 'recalled')):
        word = 'followed' if key == 'instructions' else 'true'
        true, count = tally[key]
        if count:
            verdict = Verdict.TRUE if true == count else Verdict.OPEN
            rows.append((name, f'{true} of {count} {word}', verdict))
    return rows


def _tally(events: Sequence[Event], kind: Kind) -> list[int]:
    """Return how many are true, and of how many that is known."""
    known = [event.verdict is Verdict.TRUE for event in events
             if event.kind is kind and event.verdict is not Verdict.OPEN]
    return [sum(known), len(known)]


def _deed(told: Told, since: float) -> dict[str, Any]:
    end_ns = told.until_ns if told.until_ns is not None else told.since_ns
    distance = told.judge.distance if told.judge is not None else math.nan
    return {'seconds': since, 'instruction': told.words, 'asks_to': told.kind or None, 'object': told.name or None,
            'outcome': told.outcome, 'lasted_seconds': round(told.seconds_to(end_ns), 2),
            'reached_after_seconds': None if told.reached_ns is None else round(told.seconds_to(told.reached_ns), 2),
            'distance_at_end_cm': None if math.isnan(distance) else round(100 * distance, 1)}


def _words(told: dict[str, Any]) -> str:
    if told['outcome'] is None:
        return 'not judged: no instruction of the simulator'
    if told['reached_after_seconds'] is not None:
        return f'reached after {told["reached_after_seconds"]:.1f} s'
    text = told['outcome'].replace('_', ' ')
    if told['outcome'] == Outcome.SUCCESS.value:
        text = 'is not there, came to rest' if told['asks_to'] == 'absent' else 'came to rest'
    if told['distance_at_end_cm'] is not None:
        text += f', {told["distance_at_end_cm"]:.0f} cm away at the end'
    return text


def _verdict(told: dict[str, Any]) -> Verdict:
    if told['outcome'] in (None, 'cut short'):
        return Verdict.OPEN
    return Verdict(told['outcome'] == Outcome.SUCCESS.value)
