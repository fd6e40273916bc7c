"""Two runs against each other: a pure function of what both recordings hold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from oxygen_ros.compare.outputs import Chunk, Outputs, Text
from oxygen_ros.errors import BagError

GAP_NS = 500_000_000  # commands further apart than this are not interpolated between


@dataclass(frozen=True)
class Tolerances:
    """
    What still counts as equal.

    :param action_max, action_mean: rad, largest and mean difference of a joint. :param unmatched: part of the chunks
        that only one side has.
    :param texts, notes: part of texts and of memory notes that differ or that only one side has, 0 to 1.
    :param timing: seconds, largest difference between the times at which the same chunk or text came; None: not judged.
    """

    action_max: float = 0.0
    action_mean: float = 0.0
    unmatched: float = 0.0
    texts: float = 0.0
    notes: float = 0.0
    timing: float | None = None


@dataclass
class JointDifference:
    """One joint: largest and mean absolute difference in rad, and how many values were compared."""

    largest: float
    mean: float
    values: int


@dataclass
class Actions:
    """
    :param basis: 'chunks' (model outputs of the same frames) or 'commands' (what was sent at the same times).
    :param matched: chunks or moments compared; only_a, only_b: what the other side lacks.
    """

    basis: str
    matched: int
    only_a: int
    only_b: int
    joints: dict[str, JointDifference] = field(default_factory=dict)
    joints_only_a: list[str] = field(default_factory=list)
    joints_only_b: list[str] = field(default_factory=list)

    @property
    def largest(self) -> float:
        """Largest difference of any joint."""
        return max((joint.largest for joint in self.joints.values()), default=0.0)

    @property
    def mean(self) -> float:
        """Largest mean difference of any joint."""
        return max((joint.mean for joint in self.joints.values()), default=0.0)


@dataclass
class Words:
    """Texts or notes: how many are the same, differ, or are on one side only; `examples`: the first that differ."""

    same: int = 0
    different: int = 0
    only_a: int = 0
    only_b: int = 0
    examples: list[dict[str, Any]] = field(default_factory=list)

    @property
    def part(self) -> float:
        """Part of all that is not the same."""
        other = self.different + self.only_a + self.only_b
        return other / (self.same + other) if other else 0.0


@dataclass
class Timing:
    """Differences in seconds, B minus A, of when the same came: `largest` in size, and the mean."""

    compared: int = 0
    largest: float = 0.0
    mean: float = 0.0


@dataclass
class Comparison:
    """Everything that was compared, and in `verdicts` one line for each tolerance that is exceeded."""

    a: str
    b: str
    actions: list[Actions]
    texts: dict[str, Words]
    notes: Words
    chunk_timing: Timing
    text_timing: Timing
    verdicts: list[str]

    @property
    def equal(self) -> bool:
        """Whether all is within the tolerances."""
        return not self.verdicts

    def as_dict(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {**asdict(self), 'equal': self.equal}


def compare(a: Outputs, b: Outputs, tolerances: Tolerances, shift_ns: int = 0) -> Comparison:
    """
    Compare two runs.

    :param shift_ns: added to all stamps and times of B, for runs that happened at another time.
    :raises BagError: the two have nothing in common that could be compared.
    """
    actions, chunk_times = [], np.zeros(0)
    if a.chunks and b.chunks:
        compared, chunk_times = _compare_chunks(a.chunks, b.chunks, shift_ns)
        actions.append(compared)
    if a.names and b.names:
        actions.append(_compare_commands(a, b, shift_ns))
    texts, text_times = _compare_texts(a.texts, b.texts, shift_ns)
    notes = _match([((stamp,), text) for stamp, text, _ in a.notes],
                   [((stamp + shift_ns,), text) for stamp, text, _ in b.notes])
    common = any(entry.matched for entry in actions) or notes.same or notes.different or any(
        words.same or words.different for words in texts.values())
    if not common:
        raise BagError(f'{a.path!r} and {b.path!r} have nothing in common: no chunk, command, text or note is about '
                       'the same moment. Were they made from one recording? With other times: --align start')
    result = Comparison(a.path, b.path, actions, texts, notes, _timing(chunk_times), _timing(text_times), [])
    result.verdicts = _judge(result, tolerances)
    return result


def _compare_chunks(a: Sequence[Chunk], b: Sequence[Chunk], shift_ns: int) -> tuple[Actions, np.ndarray]:
    pairs, only_a, only_b = _pairs([((chunk.stamp_ns,), chunk) for chunk in a],
                                   [((chunk.stamp_ns + shift_ns,), chunk) for chunk in b])
    names_a = dict.fromkeys(name for chunk in a for name in chunk.names)
    names_b = dict.fromkeys(name for chunk in b for name in chunk.names)
    differences: dict[str, list[np.ndarray]] = defaultdict(list)
    for one, other in pairs:
        times = sorted(set(one.times_ns) & set(other.times_ns))
        rows = [one.times_ns.index(time) for time in times], [other.times_ns.index(time) for time in times]
        for name in set(one.names) & set(other.names):
            differences[name].append(np.abs(one.rows[rows[0], one.names.index(name)]
                                            - other.rows[rows[1], other.names.index(name)]))
    joints = {name: _joint(np.concatenate(differences[name])) for name in names_a if differences.get(name)}
    times = np.array([other.published_ns + shift_ns - one.published_ns for one, other in pairs]) / 1e9
    return Actions('chunks', len(pairs), only_a, only_b, joints, [name for name in names_a if name not in names_b],
                   [name for name in names_b if name not in names_a]), times


def _compare_commands(a: Outputs, b: Outputs, shift_ns: int) -> Actions:
    """Compare at the times of A, with B interpolated in between."""
    times_b = b.command_times + shift_ns
    times_b, first = np.unique(times_b, return_index=True)
    commands_b = b.commands[first]
    after = np.searchsorted(times_b, a.command_times)
    exact = (after < len(times_b)) & (times_b[np.minimum(after, len(times_b) - 1)] == a.command_times)
    inside = exact | ((after > 0) & (after < len(times_b)))
    low, high = np.clip(after - 1, 0, None), np.clip(after, None, len(times_b) - 1)
    low = np.where(exact, high, low)
    inside &= times_b[high] - times_b[low] <= GAP_NS
    used_a = np.nonzero(inside)[0]
    low, high = low[inside], high[inside]
    span = np.maximum(times_b[high] - times_b[low], 1)
    part = ((a.command_times[inside] - times_b[low]) / span)[:, None]
    values = commands_b[low] + part * (commands_b[high] - commands_b[low])
    joints = {}
    for name in a.names:
        if name in b.names and len(used_a):
            difference = np.abs(a.commands[used_a, a.names.index(name)] - values[:, b.names.index(name)])
            if np.isfinite(difference).any():
                joints[name] = _joint(difference[np.isfinite(difference)])
    begin, end = (a.command_times[0], a.command_times[-1]) if len(a.command_times) else (0, -1)
    only_b = int(np.sum((times_b < begin) | (times_b > end)))
    return Actions('commands', len(used_a), len(a.command_times) - len(used_a), only_b, joints,
                   [name for name in a.names if name not in b.names], [name for name in b.names if name not in a.names])


def _compare_texts(a: Sequence[Text], b: Sequence[Text], shift_ns: int) -> tuple[dict[str, Words], np.ndarray]:
    words, times = {}, []
    for task in dict.fromkeys([text.task for text in (*a, *b)]):
        ours = [((text.stamp_ns,), text) for text in a if text.task == task]
        theirs = [((text.stamp_ns + shift_ns if text.stamp_ns else 0,), text) for text in b if text.task == task]
        words[task] = _match([(key, text.text) for key, text in ours], [(key, text.text) for key, text in theirs])
        times += [other.last_ns + shift_ns - one.last_ns for one, other in _pairs(ours, theirs)[0]]
    return words, np.array(times) / 1e9


def _match(a: Sequence[tuple[Hashable, str]], b: Sequence[tuple[Hashable, str]]) -> Words:
    pairs, only_a, only_b = _pairs([(key, (key, text)) for key, text in a], [(key, (key, text)) for key, text in b])
    differing = [(key, one, other) for (key, one), (_, other) in pairs if one != other]
    examples = [{'stamp_ns': key[0], 'a': one, 'b': other} for key, one, other in differing[:3]]
    return Words(len(pairs) - len(differing), len(differing), only_a, only_b, examples)


def _pairs(a: Sequence[tuple[Hashable, Any]], b: Sequence[tuple[Hashable, Any]]) -> tuple[list, int, int]:
    """Pair what has the same key, the n-th of it with the n-th; return also how many are left on either side."""
    waiting: dict[Hashable, list] = defaultdict(list)
    for key, item in b:
        waiting[key].append(item)
    pairs = [(item, waiting[key].pop(0)) for key, item in a if waiting.get(key)]
    return pairs, len(a) - len(pairs), len(b) - len(pairs)


def _joint(differences: np.ndarray) -> JointDifference:
    if not len(differences):
        return JointDifference(0.0, 0.0, 0)
    return JointDifference(float(differences.max()), float(differences.mean()), len(differences))


def _timing(seconds: np.ndarray) -> Timing:
    if not len(seconds):
        return Timing()
    return Timing(len(seconds), float(seconds[np.argmax(np.abs(seconds))]), float(seconds.mean()))


def _judge(result: Comparison, tolerances: Tolerances) -> list[str]:
    verdicts = []
    for actions in result.actions:
        if actions.largest > tolerances.action_max:
            worst = max(actions.joints, key=lambda name: actions.joints[name].largest)
            verdicts.append(f'{actions.basis}: {worst} differs by up to {actions.largest:.6g} rad, allowed are '
                            f'{tolerances.action_max:g}')
        if actions.mean > tolerances.action_mean:
            worst = max(actions.joints, key=lambda name: actions.joints[name].mean)
            verdicts.append(f'{actions.basis}: {worst} differs by {actions.mean:.6g} rad in the mean, allowed are '
                            f'{tolerances.action_mean:g}')
        other = actions.only_a + actions.only_b
        if other > tolerances.unmatched * (actions.matched + other):
            verdicts.append(f'{actions.basis}: {actions.only_a} only in A and {actions.only_b} only in B, beside '
                            f'{actions.matched} in both')
        if actions.joints_only_a or actions.joints_only_b:
            verdicts.append(f'{actions.basis}: joints only in A: {", ".join(actions.joints_only_a) or "none"}; only in '
                            f'B: {", ".join(actions.joints_only_b) or "none"}')
    for name, words, allowed in [*((f'texts of {task}', words, tolerances.texts)
                                   for task, words in result.texts.items()),
                                 ('memory', result.notes, tolerances.notes)]:
        if words.part > allowed:
            verdicts.append(f'{name}: {words.different} differ, {words.only_a} only in A, {words.only_b} only in B; '
                            f'{words.same} are the same')
    if tolerances.timing is not None:
        for name, timing in (('chunks', result.chunk_timing), ('texts', result.text_timing)):
            if abs(timing.largest) > tolerances.timing:
                verdicts.append(f'timing of {name}: up to {timing.largest:+.4f} s apart, allowed are '
                                f'{tolerances.timing:g} s')
    return verdicts
