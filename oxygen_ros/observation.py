"""Observation: what the robot perceived at one moment, as plain NumPy. No ROS here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Observation:
    """
    Synchronised images and joint state.

    :param number: counts up by one per frame, from 1 (`Frame.frame_number`).
    :param stamp_ns: capture time in nanoseconds of the node clock: the newest of the image stamps.
    :param images: camera name -> uint8 [height, width, 3], RGB. A camera without a picture is absent.
    :param joint_names: names of the joints, in the order of the arrays below.
    :param joint_positions: float64 [joints], rad (m for prismatic joints), finite.
    :param joint_velocities: float64 [joints], rad/s, or None when not known.
    :param tf_frame: TF frame of the robot base, handed on to the outputs.
    """

    number: int
    stamp_ns: int
    images: Mapping[str, np.ndarray]
    joint_names: tuple[str, ...] = ()
    joint_positions: np.ndarray = field(default_factory=lambda: np.zeros(0))
    joint_velocities: np.ndarray | None = None
    tf_frame: str = ''

    def __post_init__(self) -> None:
        for name, image in self.images.items():
            if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
                raise ValueError(f'image of camera {name!r} must be uint8 [height, width, 3], '
                                 f'not {image.dtype} {list(image.shape)}')
        joints = len(self.joint_names)
        if self.joint_positions.shape != (joints,):
            raise ValueError(f'{joints} joint names but positions of shape {list(self.joint_positions.shape)}')
        if self.joint_velocities is not None and self.joint_velocities.shape != (joints,):
            raise ValueError(f'{joints} joint names but velocities of shape {list(self.joint_velocities.shape)}')
        if not np.isfinite(self.joint_positions).all():
            bad = [n for n, p in zip(self.joint_names, self.joint_positions) if not np.isfinite(p)]
            raise ValueError(f'positions of {bad} are not finite')
