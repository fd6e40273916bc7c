"""What an evaluation episode is, when it is a success, and how texts are scored against the truth."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from oxygen_ros.simulation import language
from oxygen_ros.simulation.dataset import Question
from oxygen_ros.simulation.language import normalise
from oxygen_ros.simulation.objects import COLUMNS, ROWS, TableObject
from oxygen_ros.simulation.scene import Scene
from oxygen_ros.simulation.simulation import SCENE_STREAM, Simulation, Truth

RADIUS = 0.03  # m: a fingertip this near to the point above an object points at it
HOLD = 1.0  # s without a break
DURATION = 6.0  # s
KINDS = {'reach': 0.80, 'absent': 0.12, 'rest': 0.08}  # how often episodes are of each kind
ELSEWHERE = 0.3  # how often an episode begins at another object; always when it is to rest


class Outcome(str, Enum):
    """How an episode ended."""

    SUCCESS = 'success'
    WRONG_OBJECT = 'wrong_object'  # pointed at another object, and never at the right one
    MISSED = 'missed'              # pointed at nothing
    NOT_AT_REST = 'not_at_rest'    # told to rest, or to reach for what is not there, but did not end at rest


@dataclass(frozen=True)
class Episode:
    """
    A scene, and what the robot is told in it.

    :param seed: of the scene, for `Simulation.reset`.
    :param kind: one of KINDS. absent: success is to be at rest at the end, without having pointed at anything else.
    :param instruction: what it is told.
    :param name: of the object it is told of, '' for none.
    :param start: number of the object that it points at in the beginning, -1 for the rest pose.
    """

    seed: int
    kind: str
    instruction: str
    name: str
    start: int = -1

    def begin(self, simulation: Simulation) -> Scene:
        """Put the scene and the posture it begins with into a simulation."""
        scene = simulation.reset(self.seed)
        if self.start >= 0:
            item = scene.objects[self.start]
            simulation.reset(self.seed, scene, simulation.oracle.goal(item.arm, item.point_above))
        return scene


def make_episode(seed: int, objects: Sequence[TableObject]) -> Episode:
    """
    Return the episode of a seed.

    :param objects: of the scene of that seed, as `Simulation.reset` gives it.
    """
    random = np.random.default_rng([SCENE_STREAM, seed, 1])
    kind = str(random.choice(list(KINDS), p=list(KINDS.values())))
    target = int(random.integers(len(objects)))
    name = {'reach': objects[target].name, 'absent': language.draw_absent(random, objects), 'rest': ''}[kind]
    templates = language.REST_INSTRUCTIONS if kind == 'rest' else language.REACH_INSTRUCTIONS
    others = [number for number in range(len(objects)) if kind != 'reach' or number != target]
    elsewhere = others and (kind == 'rest' or random.random() < ELSEWHERE)
    start = int(random.choice(others)) if elsewhere else -1
    return Episode(seed, kind, str(random.choice(templates)).format(name), name, start)


class Judge:
    """
    Watches an episode.

    :param episode: what the robot was told.
    """

    def __init__(self, episode: Episode) -> None:
        self._episode = episode
        self._since: dict[str, float] = {}  # object -> when a fingertip came near to it
        self._left: set[str] = set()  # objects that no fingertip was near to, since the beginning or later
        self._held: list[str] = []  # objects that were pointed at, in order
        self._deviation = 0.0
        self.distance = float('nan')  # from the nearer fingertip to the point above the object, m; NaN: there is none

    def watch(self, truth: Truth, time: float) -> None:
        """
        Take in a moment; some ten times a second.

        :param time: s, of any clock that goes with the simulation.
        """
        self._deviation = truth.from_rest
        for item in truth.objects:
            distance = min(float(np.linalg.norm(tip - item.point_above)) for tip in truth.fingertips.values())
            if item.name == self._episode.name:
                self.distance = distance
            if distance > RADIUS:
                self._since.pop(item.name, None)
                self._left.add(item.name)
                continue
            began = self._since.setdefault(item.name, time)
            # Where it began counts only when it has come back: it was put there.
            if time - began >= HOLD - 1e-6 and (item.name in self._left or item.name == self._episode.name):
                if not self._held or self._held[-1] != item.name:
                    self._held.append(item.name)

    @property
    def reached(self) -> bool:
        """Whether it has pointed at the right object for long enough; an episode may end then."""
        return self._episode.kind == 'reach' and self._episode.name in self._held

    @property
    def outcome(self) -> Outcome:
        """How the episode has gone until now."""
        if self._episode.kind == 'reach':
            if self.reached:
                return Outcome.SUCCESS
            return Outcome.WRONG_OBJECT if self._held else Outcome.MISSED
        if self._held:
            return Outcome.WRONG_OBJECT
        return Outcome.SUCCESS if self._deviation <= language.GOING_HOME else Outcome.NOT_AT_REST


@dataclass(frozen=True)
class Facts:
    """Facts of a note: how many are true, of how many that it states; and those of seen objects that it leaves out."""

    true: int
    stated: int
    missing: int = 0

    @property
    def total(self) -> int:
        """All that it states or leaves out."""
        return self.stated + self.missing


def score_answer(question: Question, answer: str) -> bool:
    """Whether an answer is the right one, word for word. Leave out questions that are not clear."""
    return normalise(answer) == normalise(question.answer)


def expected_line(instruction: str, truth: Truth) -> tuple[str, bool]:
    """
    Return what the robot should say at a moment, and whether it is clear.

    :param instruction: what it was told; '' and False if that is none of ours.
    """
    kind, name = language.read_instruction(instruction)
    if kind == 'rest':
        return language.rest_line(truth.from_rest)
    if not name:
        return '', False
    item = next((item for item in truth.objects if item.name == name), None)
    if item is None:
        return language.absent_line(name), language.absent_clear(name, truth.objects)
    distance = float(np.linalg.norm(truth.fingertips[item.arm] - item.point_above))
    line, clear = language.reach_line(name, item.arm, distance)
    return line, clear and (item.seen or distance < language.ARRIVED)


def score_line(line: str, instruction: str, truths: Iterable[Truth]) -> bool | None:
    """
    Whether a spoken line is true of its moment, and to the point.

    :param truths: of the frame it was said of; more than one where a line may speak of any of them.
    :returns: None where it is a matter of opinion.
    """
    expected = [expected_line(instruction, truth) for truth in truths]
    if normalise(line) in {normalise(text) for text, _ in expected}:
        return True
    return False if all(clear for _, clear in expected) else None


def score_note(text: str, objects: Sequence[TableObject]) -> Facts:
    """
    Count the facts of a note: of each object named, that it is there, its row and its column.

    A named object that is not there counts as three wrong facts, a seen one that is not named as three missing ones.
    So an object with the wrong name is both. Objects that are a matter of opinion do not count; nor do regions near to
    a border.
    """
    there = {item.name: item for item in objects}
    true = stated = 0
    named = set()
    for claim in normalise(text).split(','):
        words = claim.split()
        if ' '.join(words) in ('', language.NOTHING):
            continue
        name, place = ' '.join(words[:2]), words[2:]
        item = there.get(name)
        if item is None or name in named:
            stated += 3
            continue
        named.add(name)
        if item.hidden:
            stated += 3
        elif item.seen:
            facts = [True]
            if item.region_clear:
                row, column = (place + ['', ''])[:2]
                facts += [row == item.row and row in ROWS, column == item.column and column in COLUMNS]
            true += sum(facts)
            stated += len(facts)
    return Facts(true, stated, 3 * sum(item.seen and item.name not in named for item in objects))
