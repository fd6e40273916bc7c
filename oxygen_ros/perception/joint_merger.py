"""Merges the joint states of several publishers by joint name. No ROS here."""

from __future__ import annotations

import bisect
import enum
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

MAX_JOINTS = 1024    # joints that are learned from messages when no list is given
MAX_SAMPLES = 4096   # joint state messages that are kept
MAX_LAYOUTS = 64     # orders of names whose mapping is kept
MAX_NAMES = 4096     # joints of one message
MAX_NAME_LENGTH = 256


class JointFault(enum.Enum):
    """Why a message, or one joint of a message, was not used."""

    LENGTH_MISMATCH = 'length_mismatch'  # positions and names differ in number: the whole message
    VELOCITY_MISMATCH = 'velocity_mismatch'  # velocities and names differ in number: its velocities
    DUPLICATE_NAME = 'duplicate_name'    # a name occurs twice in one message: this joint of it
    UNKNOWN_NAME = 'unknown_name'        # not a joint of the robot
    NOT_FINITE = 'not_finite'            # NaN or infinite position: this joint of the message
    TOO_MANY = 'too_many'                # more joints than any robot has: the whole message
    LATE = 'late'                        # far older than the newest message: the whole message


@dataclass(frozen=True)
class JointSnapshot:
    """
    The joints at one moment.

    :param names: joints with a position that is fresh enough, in the order of the robot.
    :param positions: float64 [joints], rad (m for prismatic joints), finite.
    :param velocities: float64 [joints], rad/s, or None unless the velocity of every joint is known.
    :param stamp_ns: stamp of the oldest position, 0 without any.
    :param missing: joints of the robot (without a list: joints that had a position before) without a fresh position.
    """

    names: tuple[str, ...]
    positions: np.ndarray
    velocities: np.ndarray | None
    stamp_ns: int
    missing: tuple[str, ...]


@dataclass(frozen=True)
class _Layout:
    """Where the usable joints of a message lie in it (`sources`) and in our order (`columns`)."""

    sources: np.ndarray
    columns: np.ndarray
    duplicates: int
    unknown: tuple[str, ...]

    def pick(self, values: Sequence[float]) -> np.ndarray:
        """Return the values of a message in our order, or NaN for all if it has none."""
        return np.asarray(values, np.float64)[self.sources] if len(values) else np.full(len(self.columns), np.nan)


@dataclass(frozen=True)
class _Sample:
    """One message in our order: `columns` with their values; NaN where a value is unusable."""

    stamp_ns: int
    columns: np.ndarray
    positions: np.ndarray
    velocities: np.ndarray


class JointMerger:
    """
    Keeps the joint states of the last moments and answers what the joints were at a given stamp.

    Not thread-safe: one thread owns it. Memory is bounded.

    :param joints: joints of the robot in the wanted order; empty takes every joint that comes, in order of appearance.
    :param max_age_ns: a position further than this from the asked stamp counts as missing.
    """

    def __init__(self, joints: Sequence[str] = (), max_age_ns: int = 200_000_000):
        if len(set(joints)) != len(joints):
            raise ValueError(f'joints {list(joints)} are not unique')
        if max_age_ns <= 0:
            raise ValueError(f'max_age_ns must be positive, not {max_age_ns}')
        self.counters: Counter[JointFault] = Counter()
        self.unknown: set[str] = set()      # names that were ignored, the first few
        self.not_finite: set[str] = set()   # joints whose newest position was NaN or infinite
        self._fixed = bool(joints)
        self._column = {name: column for column, name in enumerate(joints)}
        self._wanted = set(range(len(joints)))  # columns that should have a position
        self._max_age_ns = max_age_ns
        self._keep_ns = max(1_000_000_000, 2 * max_age_ns)
        self._samples: list[_Sample] = []   # ordered by stamp
        self._stamps: list[int] = []
        self._layouts: dict[tuple[str, ...], _Layout] = {}

    def clear(self) -> None:
        """Forget all messages (the clock jumped). Counters and learned names stay."""
        self._samples.clear()
        self._stamps.clear()
        self.not_finite.clear()

    def add(self, names: Sequence[str], positions: Sequence[float], velocities: Sequence[float], stamp_ns: int) -> None:
        """
        Take one message. Without positions it only brings velocities, which the message definition allows.

        :param positions: rad, one per name or none.
        :param velocities: rad/s, one per name or none.
        """
        if len(names) > MAX_NAMES:
            self.counters[JointFault.TOO_MANY] += 1
            return
        if len(positions) not in (0, len(names)):
            self.counters[JointFault.LENGTH_MISMATCH] += 1
            return
        if self._stamps and stamp_ns < self._stamps[-1] - self._keep_ns:
            self.counters[JointFault.LATE] += 1
            return
        layout = self._layout(tuple(names))
        if layout.duplicates or layout.unknown:
            self.counters[JointFault.DUPLICATE_NAME] += layout.duplicates
            self.counters[JointFault.UNKNOWN_NAME] += len(layout.unknown)
        if len(velocities) not in (0, len(names)):
            self.counters[JointFault.VELOCITY_MISMATCH] += 1
            velocities = ()
        sample = _Sample(stamp_ns, layout.columns, layout.pick(positions), layout.pick(velocities))
        if len(positions):
            self._note_not_finite(sample)
            if not self._fixed:
                self._wanted.update(sample.columns.tolist())
        index = bisect.bisect_right(self._stamps, stamp_ns)
        self._samples.insert(index, sample)
        self._stamps.insert(index, stamp_ns)
        outdated = bisect.bisect_left(self._stamps, self._stamps[-1] - self._keep_ns)
        outdated = max(outdated, len(self._stamps) - MAX_SAMPLES)
        del self._samples[:outdated], self._stamps[:outdated]

    def snapshot(self, at_ns: int) -> JointSnapshot:
        """Return every joint with the position whose stamp is nearest to `at_ns`, the older one of two equally near."""
        count = len(self._column)
        positions, velocities = np.full(count, np.nan), np.full(count, np.nan)
        oldest_ns = at_ns + self._max_age_ns
        after = bisect.bisect_right(self._stamps, at_ns)
        before = after - 1
        while np.isnan(positions).any() or np.isnan(velocities).any():
            ages = (at_ns - self._stamps[before] if before >= 0 else self._max_age_ns + 1,
                    self._stamps[after] - at_ns if after < len(self._stamps) else self._max_age_ns + 1)
            if min(ages) > self._max_age_ns:
                break
            index = before if ages[0] <= ages[1] else after
            before, after = (before - 1, after) if index == before else (before, after + 1)
            sample = self._samples[index]
            fresh = np.isnan(positions[sample.columns]) & np.isfinite(sample.positions)
            if fresh.any():
                positions[sample.columns[fresh]] = sample.positions[fresh]
                oldest_ns = min(oldest_ns, sample.stamp_ns)
            fresh = np.isnan(velocities[sample.columns]) & np.isfinite(sample.velocities)
            velocities[sample.columns[fresh]] = sample.velocities[fresh]
        known = np.isfinite(positions)
        all_velocities = known.any() and bool(np.isfinite(velocities[known]).all())
        return JointSnapshot(
            names=tuple(name for name, column in self._column.items() if known[column]),
            positions=positions[known],
            velocities=velocities[known] if all_velocities else None,
            stamp_ns=oldest_ns if known.any() else 0,
            missing=tuple(name for name, column in self._column.items()
                          if column in self._wanted and not known[column]))

    def newest(self) -> JointSnapshot:
        """Return the snapshot at the stamp of the newest message."""
        return self.snapshot(self._stamps[-1] if self._stamps else 0)

    def _note_not_finite(self, sample: _Sample) -> None:
        good = np.isfinite(sample.positions)
        if good.all() and not self.not_finite:
            return
        bad = ~good
        self.counters[JointFault.NOT_FINITE] += int(bad.sum())
        names = list(self._column)
        self.not_finite |= {names[column] for column in sample.columns[bad]}
        self.not_finite -= {names[column] for column in sample.columns[good]}

    def _layout(self, names: tuple[str, ...]) -> _Layout:
        """Return the mapping for this order of names; publishers repeat theirs, so it is kept."""
        layout = self._layouts.get(names)
        if layout is not None:
            return layout
        times = Counter(names)
        if not self._fixed:
            for name in names:
                if 0 < len(name) <= MAX_NAME_LENGTH and len(self._column) < MAX_JOINTS:
                    self._column.setdefault(name, len(self._column))
        usable = [(source, self._column[name]) for source, name in enumerate(names)
                  if times[name] == 1 and name in self._column]
        unknown = tuple(name for name in times if name not in self._column)
        self.unknown.update(name[:MAX_NAME_LENGTH] for name in unknown[:max(0, 16 - len(self.unknown))])
        layout = _Layout(sources=np.array([source for source, _ in usable], np.intp),
                         columns=np.array([column for _, column in usable], np.intp),
                         duplicates=sum(number > 1 for number in times.values()), unknown=unknown)
        if len(self._layouts) >= MAX_LAYOUTS:
            self._layouts.clear()
        if sum(map(len, names)) <= MAX_NAMES * 16:
            self._layouts[names] = layout
        return layout
