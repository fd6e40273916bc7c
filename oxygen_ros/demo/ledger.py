"""
Ledger: what was told, asked, said and remembered in the simulator, judged by what was so. Plain data, no ROS.

Threads: as for `Record`; whoever calls holds its lock.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from oxygen_ros.demo.events import Event, Kind, Verdict
from oxygen_ros.simulation import language
from oxygen_ros.simulation.asking import read_question
from oxygen_ros.simulation.episode import DURATION, Episode, Facts, Judge, Outcome, score_answer, score_line, score_note
from oxygen_ros.simulation.simulation import Truth

KEPT_TRUTHS = 6000  # ten minutes of them
NANOSECONDS = 1_000_000_000
# Around a change of instruction either may be meant: a frame is computed up to so long after its moment, with the
# instruction of then; and the time here is that of the last picture.
BEFORE_NS, AFTER_NS = NANOSECONDS // 2, NANOSECONDS // 5
WHOLE = ('stop', 'length')  # ends of texts that are all that the model had to say


@dataclass
class Told:
    """
    An instruction that the robot took.

    :param since_ns: when, in time of the simulator; `until_ns` when something else was told, or watching ended.
    :param judge: watches what comes of it; None if it is no instruction that is known here.
    :param reached_ns: when a fingertip had been near the point above the object for long enough.
    """

    words: str
    since_ns: int
    kind: str = ''
    name: str = ''
    judge: Judge | None = None
    reached_ns: int | None = None
    until_ns: int | None = None

    @property
    def outcome(self) -> str | None:
        """What came of it, one of `Outcome` or 'cut short'; None if it is not judged."""
        if self.judge is None:
            return None
        outcome, end_ns = self.judge.outcome, self.until_ns or self.since_ns
        whole = end_ns - self.since_ns >= DURATION * NANOSECONDS
        return outcome.value if whole or outcome is Outcome.SUCCESS else 'cut short'

    def seconds_to(self, time_ns: int) -> float:
        """Return seconds of the simulator since it was told."""
        return (time_ns - self.since_ns) / NANOSECONDS


class Ledger:
    """
    Takes in what happens and judges it.

    :param instruction: what the robot does until it is told something.
    """

    def __init__(self, instruction: str) -> None:
        self.events: list[Event] = []
        self.listeners: list[Callable[[Event], None]] = []  # told of each event, with the lock held
        self.told: list[Told] = []
        self.facts: list[Facts] = []  # of each message of a note
        self.now_ns = 0
        self.stopped = False  # at some time
        self._instruction = instruction
        self._truths: dict[int, Truth] = {}
        self._clock: list[tuple[float, int]] = []  # real seconds, simulated ns
        self._asked = 0

    @property
    def truth(self) -> Truth | None:
        """What is so; None before the simulator has said anything."""
        return self._truths.get(self.now_ns)

    def take_truth(self, stamp_ns: int, truth: Truth, now: float) -> None:
        """
        Take in what is so at a moment.

        :param now: real seconds.
        """
        self._truths[stamp_ns] = truth
        while len(self._truths) > KEPT_TRUTHS:
            self._truths.pop(next(iter(self._truths)))
        self.now_ns = stamp_ns
        self._clock.append((now, stamp_ns))
        told = self.told[-1] if self.told else None
        if told is None or told.judge is None or told.until_ns is not None:
            return
        told.judge.watch(truth, stamp_ns / NANOSECONDS)
        if told.judge.reached and told.reached_ns is None:
            told.reached_ns = stamp_ns
            self._add(Kind.DID, f'reached the {told.name} after {told.seconds_to(stamp_ns):.1f} s', Verdict.TRUE)

    def speed(self, since: float) -> float:
        """
        Return how quick simulated time went, 1 being real time.

        :param since: real seconds.
        """
        first = bisect.bisect_left(self._clock, (since, 0))
        if len(self._clock) - first < 2:
            return 1.0
        (begin, begin_ns), (end, end_ns) = self._clock[first], self._clock[-1]
        return (end_ns - begin_ns) / NANOSECONDS / max(end - begin, 1e-9)

    # -- what people do ----------------------------------------------------------------------------------------------

    def instructed(self, words: str) -> None:
        """The robot has taken an instruction."""
        self.conclude()
        told = Told(words, self.now_ns)
        kind, name = language.read_instruction(words)
        if kind and self.truth is not None:
            there = {item.name for item in self.truth.objects}
            told.kind, told.name = 'absent' if kind == 'reach' and name not in there else kind, name
            told.judge = Judge(Episode(0, told.kind, words, name))
        self.told.append(told)
        self._add(Kind.TOLD, words)

    def conclude(self) -> None:
        """What was told last is over."""
        if not self.told or self.told[-1].until_ns is not None:
            return
        told = self.told[-1]
        told.until_ns = self.now_ns
        if told.judge is None or told.reached_ns is not None:
            return
        verdict = {'success': Verdict.TRUE, 'cut short': Verdict.OPEN}.get(told.outcome, Verdict.FALSE)
        self._add(Kind.DID, _deed(told), verdict)

    def stop(self, message: str) -> None:
        """The robot holds still."""
        self.conclude()
        self.stopped = True
        self.inform(message)

    def asked(self, question: str) -> int:
        """A question has been put; returns its number."""
        self._add(Kind.ASKED, question, number=self._asked)
        self._asked += 1
        return self._asked - 1

    def inform(self, text: str) -> None:
        """The demo itself says something."""
        self._add(Kind.INFORMED, text)

    # -- what the robot says -----------------------------------------------------------------------------------------

    def answered(self, number: int, question: str, answer: str, finish: str, stamp_ns: int) -> None:
        """
        Take in a whole answer.

        :param finish: why it ended. :param stamp_ns: of its frame.
        """
        truth = self._truths.get(stamp_ns)
        asked = read_question(question, truth.objects) if truth is not None else None
        if finish not in WHOLE:
            self._add(Kind.ANSWERED, answer, detail=finish, number=number)
        elif asked is None or not asked.clear:
            self._add(Kind.ANSWERED, answer, detail='' if asked is None else 'a matter of opinion', number=number)
        elif score_answer(asked, answer):
            self._add(Kind.ANSWERED, answer, Verdict.TRUE, number=number)
        else:
            self._add(Kind.ANSWERED, answer, Verdict.FALSE, f'right is: {asked.answer}', number)

    def said(self, line: str, finish: str, stamp_ns: int) -> None:
        """Take in a whole spoken line."""
        if finish in WHOLE:
            self._add(Kind.SAID, line, self._judge_line(line, stamp_ns))

    def noted(self, note: str, stamp_ns: int, new: bool) -> None:
        """
        Take in a note.

        :param new: it says something else than the note before it.
        """
        facts = self._facts(note, stamp_ns)
        if facts is not None:
            self.facts.append(facts)
        if new:
            self._add(Kind.NOTED, note, *self._judge_note(note, stamp_ns))

    def recalled(self, words: str, entries: Sequence[tuple[str, int, int]]) -> None:
        """
        Take in what memory has about some words.

        :param entries: text of the note, how often it was seen in a row, stamp of its last frame; newest first.
        """
        about = f' about {words}' if words else ''
        if not entries:
            self._add(Kind.RECALLED, f'nothing{about}')
        for text, count, stamp_ns in entries:
            verdict, detail = self._judge_note(text, stamp_ns)
            self._add(Kind.RECALLED, text, verdict, f'seen {count}×' + (f', {detail}' if detail else ''))

    def _judge_line(self, line: str, stamp_ns: int) -> Verdict:
        truth = self._truths.get(stamp_ns)
        if truth is None:
            return Verdict.OPEN
        starts = [(0, self._instruction), *((told.since_ns, told.words) for told in self.told)]
        ends = [*(since_ns for since_ns, _ in starts[1:]), None]
        scores = {score_line(line, words, [truth]) for (since_ns, words), end_ns in zip(starts, ends)
                  if since_ns - BEFORE_NS <= stamp_ns and (end_ns is None or stamp_ns < end_ns + AFTER_NS)}
        return Verdict.TRUE if True in scores else Verdict.FALSE if scores == {False} else Verdict.OPEN

    def _facts(self, note: str, stamp_ns: int) -> Facts | None:
        truth = self._truths.get(stamp_ns)
        return score_note(note, truth.objects) if truth is not None else None

    def _judge_note(self, note: str, stamp_ns: int) -> tuple[Verdict, str]:
        """Return the verdict on a note, and what it rests on."""
        facts = self._facts(note, stamp_ns)
        if facts is None or not facts.total:
            return Verdict.OPEN, ''
        detail = f'{facts.true} of {facts.total} facts'
        if facts.true < facts.total:
            return Verdict.FALSE, detail
        half_hidden = [item.name for item in self._truths[stamp_ns].objects
                       if not item.seen and not item.hidden and item.name in note]
        if half_hidden:  # what is said of it is not among the facts
            return Verdict.OPEN, f'{detail}, half hidden: {", ".join(half_hidden)}'
        return Verdict.TRUE, detail

    def _add(self, kind: Kind, text: str, verdict: Verdict = Verdict.OPEN, detail: str = '', number: int = -1) -> None:
        event = Event(self.now_ns, kind, text, verdict, detail, number)
        self.events.append(event)
        for listener in self.listeners:
            listener(event)


def _deed(told: Told) -> str:
    """Say what came of an instruction that did not lead to its object."""
    after = f'in {told.seconds_to(told.until_ns):.1f} s'
    if told.outcome == 'cut short':
        return f'had no more than {told.seconds_to(told.until_ns):.1f} s for it'
    if told.outcome == Outcome.WRONG_OBJECT.value:
        return 'pointed at another object'
    if told.kind == 'reach':
        return f'did not reach the {told.name} {after}: {100 * told.judge.distance:.0f} cm away'
    return 'came to rest' if told.outcome == Outcome.SUCCESS.value else f'did not come to rest {after}'
