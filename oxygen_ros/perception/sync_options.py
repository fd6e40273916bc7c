"""What the synchronizer can be told, and what it counts. No ROS here."""

from __future__ import annotations

import enum
from dataclasses import dataclass

JOINTS = 'joint_states'  # key of the joint states in the counters
MAX_CAMERAS = 32         # of a frame


class MissingPolicy(enum.Enum):
    """What becomes of a frame for which a camera has no picture within the slop."""

    REQUIRED = 'required'  # there is no frame
    OPTIONAL = 'optional'  # the frame comes without this camera
    HOLD = 'hold'          # the frame takes the last picture, up to an age; then as OPTIONAL


class StampPolicy(enum.Enum):
    """Which time a message counts as taken at."""

    HEADER = 'header'                        # header stamp; an unset (zero) stamp is refused
    HEADER_OR_RECEIVE = 'header_or_receive'  # header stamp; time of arrival where it is unset
    RECEIVE = 'receive'                      # always the time of arrival


class SyncEvent(enum.Enum):
    """What happened to a message; the counters count these per input."""

    RECEIVED = 'received'
    USED = 'used'                    # it is part of a frame
    SKIPPED = 'skipped'              # not needed: the rate is lower than the camera's, or a newer picture came first
    RECEIVE_TIME = 'receive_time'    # its stamp was unset, its arrival counts
    ZERO_STAMP = 'zero_stamp'        # refused: its stamp was unset
    FUTURE = 'future'                # refused: its stamp is ahead of the node clock
    LATE = 'late'                    # refused: a frame with a newer picture of this camera is out already
    DUPLICATE = 'duplicate'          # refused: same stamp as another picture of this camera
    NO_CLOCK = 'no_clock'            # refused: the node clock has not started (simulated time)
    RESTART = 'restart'              # stamps went back by far: everything before it was forgotten
    UNCHANGED = 'unchanged'          # the same picture as before came again
    UNUSABLE = 'unusable'            # its picture cannot be decoded


@dataclass(frozen=True)
class Camera:
    """A camera, and what to do when it has no picture."""

    name: str
    missing: MissingPolicy = MissingPolicy.REQUIRED
    hold_ns: int = 500_000_000


@dataclass(frozen=True)
class SyncOptions:
    """
    How to pair.

    :param slop_ns: newest minus oldest stamp of the pictures of a frame, at most.
    :param rate_hz: frames per second, at most, on average; 0 gives every pair.
    :param wait_ns: how long a frame waits for cameras that are not required but alive.
    :param alive_ns: a camera without a picture for this long is not waited for.
    :param future_ns: how far a stamp may be ahead of the node clock.
    :param restart_ns: stamps of one camera that go back by more than this start time anew.
    :param queue: pictures that are kept per camera while they wait for other cameras, which may lag.
    :param queue_bytes: of all pictures that are kept of a camera, beyond the newest one.
    :param require_joints: no frame while a joint is missing.
    """

    slop_ns: int = 50_000_000
    rate_hz: float = 10.0
    wait_ns: int = 50_000_000
    alive_ns: int = 1_000_000_000
    future_ns: int = 500_000_000
    restart_ns: int = 1_000_000_000
    queue: int = 30
    queue_bytes: int = 128 * 2**20
    require_joints: bool = False
    stamps: StampPolicy = StampPolicy.HEADER_OR_RECEIVE
    tf_frame: str = ''

    def __post_init__(self) -> None:
        if self.slop_ns < 0 or self.rate_hz < 0 or self.queue < 1:
            raise ValueError(f'slop and rate must not be negative and queue at least 1: {self}')
