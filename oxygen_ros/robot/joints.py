"""Joints are known by name, never by index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from oxygen_ros.errors import OxygenError


class MissingJoint(OxygenError):
    """Values for some joints are needed but not there. `names` holds the joints."""

    def __init__(self, names: Sequence[str], available: Sequence[str]) -> None:
        self.names = tuple(names)
        super().__init__(f'no value for joint {", ".join(map(repr, names))}: got {len(available)} joints '
                         f'({", ".join(available) or "none"}); check the joint state publishers and the robot file')


@dataclass(frozen=True)
class Joint:
    """
    One joint.

    :param lower: smallest position, rad (m for prismatic joints).
    :param upper: largest position, rad.
    :param velocity: largest speed of a command, rad/s, positive.
    :param default: position of the default pose, rad.
    :param rest: what is commanded while nothing executes; None holds the last command, as a position wants it. For what
        is no position but the input of a controller, such as a step or a speed: that must not go on for ever.
    :param measured: False for such inputs: no joint state tells them, and they begin at `default`.
    """

    name: str
    lower: float
    upper: float
    velocity: float
    default: float = 0.0
    rest: float | None = None
    measured: bool = True

    def __post_init__(self) -> None:
        if not np.isfinite([self.lower, self.upper, self.velocity, self.default]).all():
            raise ValueError(f'joint {self.name!r}: limits, velocity and default must be finite')
        if not self.lower < self.upper:
            raise ValueError(f'joint {self.name!r}: lower {self.lower} must be less than upper {self.upper}')
        if self.velocity <= 0:
            raise ValueError(f'joint {self.name!r}: velocity {self.velocity} must be positive')
        if not self.lower <= self.default <= self.upper:
            raise ValueError(f'joint {self.name!r}: default {self.default} is outside [{self.lower}, {self.upper}]')
        if self.rest is not None and not self.lower <= self.rest <= self.upper:
            raise ValueError(f'joint {self.name!r}: rest {self.rest} is outside [{self.lower}, {self.upper}]')


def select(names: Sequence[str], values: np.ndarray, wanted: Sequence[str]) -> np.ndarray:
    """
    Return the values of the wanted joints, in the wanted order.

    :param names: names of the last axis of `values`.
    :param values: [..., len(names)].
    :returns: float64 [..., len(wanted)], a copy.
    :raises MissingJoint: names every wanted joint that is not in `names`.
    :raises ValueError: when `names` does not fit `values`, or holds a wanted joint twice.
    """
    values = np.asarray(values, dtype=np.float64)
    if values.ndim == 0 or values.shape[-1] != len(names):
        raise ValueError(f'{len(names)} joint names but values of shape {list(values.shape)}')
    index = {name: i for i, name in enumerate(names)}
    missing = [name for name in wanted if name not in index]
    if missing:
        raise MissingJoint(missing, names)
    if len(index) != len(names):
        twice = sorted(name for name in set(names).intersection(wanted) if list(names).count(name) > 1)
        if twice:
            raise ValueError(f'joints named more than once: {twice}')
    return values[..., [index[name] for name in wanted]]
