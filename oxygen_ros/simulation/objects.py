"""Objects on the table and the regions they lie in: the words and numbers that everything else is derived from."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

# Hues far apart, so that light and camera do not turn one into another.
COLOURS = {
    'red': (0.85, 0.08, 0.06),
    'green': (0.10, 0.62, 0.12),
    'blue': (0.08, 0.18, 0.85),
    'yellow': (0.95, 0.80, 0.05),
    'purple': (0.62, 0.10, 0.72),
    'cyan': (0.10, 0.75, 0.80),
}
SHAPES = ('cube', 'ball', 'cylinder')

ABOVE = 0.05  # m: the robot points this far above the top of an object

# Regions of the table, in the frame of the robot: x forward, y to its left, m.
NEAR_FAR = 0.36  # x of the border between the rows
LEFT_MIDDLE = 0.095  # y of the border between the columns left and middle; the other is at -0.095
ROWS = ('near', 'far')
COLUMNS = ('left', 'middle', 'right')
BORDER_GAP = 0.015  # m: nearer to a border, the region is a matter of opinion
SEEN = 60  # pixels of the head camera: an object with as many is seen
HIDDEN = 12  # with fewer it is not; in between is a matter of opinion


@dataclass(frozen=True)
class TableObject:
    """
    An object on the table.

    :param colour: a key of COLOURS.
    :param shape: one of SHAPES.
    :param position: of its centre, m: x forward, y left, z up from the floor, in the frame of the robot.
    :param half_size: of a cube's edge, or the radius, m. A cylinder stands upright.
    :param yaw: rad.
    :param pixels: how many of it the head camera sees; None: not rendered.
    """

    colour: str
    shape: str
    position: tuple[float, float, float]
    half_size: float
    yaw: float = 0.0
    pixels: int | None = None

    def __post_init__(self) -> None:
        if self.colour not in COLOURS or self.shape not in SHAPES:
            raise ValueError(f'no object is a {self.colour} {self.shape}')
        if not (self.half_size > 0 and all(math.isfinite(value) for value in self.position)):
            raise ValueError(f'{self.name} has size {self.half_size} and position {self.position}')

    @property
    def name(self) -> str:
        """Its words: 'red cube'."""
        return f'{self.colour} {self.shape}'

    @property
    def half_height(self) -> float:
        """Half of its height, m."""
        return half_height(self.shape, self.half_size)

    @property
    def point_above(self) -> tuple[float, float, float]:
        """Where a fingertip points at it: ABOVE its top, m."""
        x, y, z = self.position
        return x, y, z + self.half_height + ABOVE

    @property
    def arm(self) -> str:
        """The nearer arm: 'left' or 'right'."""
        return 'left' if self.position[1] >= 0 else 'right'

    @property
    def row(self) -> str:
        """One of ROWS."""
        return ROWS[self.position[0] >= NEAR_FAR]

    @property
    def column(self) -> str:
        """One of COLUMNS."""
        y = self.position[1]
        return COLUMNS[0 if y >= LEFT_MIDDLE else 2 if y <= -LEFT_MIDDLE else 1]

    @property
    def region(self) -> str:
        """Row and column: 'far left'."""
        return f'{self.row} {self.column}'

    @property
    def region_clear(self) -> bool:
        """Whether it is far enough from the borders of its region."""
        x, y, _ = self.position
        return min(abs(x - NEAR_FAR), abs(abs(y) - LEFT_MIDDLE)) >= BORDER_GAP

    @property
    def seen(self) -> bool:
        """Whether the head camera sees enough of it (True if that is not known)."""
        return self.pixels is None or self.pixels >= SEEN

    @property
    def hidden(self) -> bool:
        """Whether the head camera sees nothing worth mentioning of it. Neither seen nor hidden: a matter of opinion."""
        return self.pixels is not None and self.pixels < HIDDEN

    def with_pixels(self, pixels: int) -> TableObject:
        """Return the same object, seen so well."""
        return replace(self, pixels=int(pixels))

    def to_dict(self) -> dict:
        """Return its fields for JSON."""
        return asdict(self)

    @staticmethod
    def from_dict(values: Mapping) -> TableObject:
        """Read what `to_dict` gave."""
        return TableObject(**{**values, 'position': tuple(values['position'])})


def half_height(shape: str, half_size: float) -> float:
    """Return half the height of an object, m: cylinders are taller than wide, to be told from cubes."""
    return 1.3 * half_size if shape == 'cylinder' else half_size
