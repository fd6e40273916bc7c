"""Finds pictures of several cameras that belong together by their stamps. No ROS here."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, Future
from concurrent.futures import TimeoutError as NotYet

import numpy as np

from oxygen_ros.perception.images import ImageError, ImageFault

PATIENCE_SECONDS = 5.0  # for one picture that another thread decodes; a usual one takes some milliseconds


class Picture:
    """
    A picture that waits for its frame.

    :param stamp_ns: the time it counts as taken at.
    :param decode: gives uint8 [height, width, 3] RGB, or raises ImageError; called once at most.
    :param size: bytes that it keeps in memory until it is decoded.
    """

    def __init__(self, camera: str, stamp_ns: int, tf_frame: str, decode: Callable[[], np.ndarray], size: int = 0):
        self.camera = camera
        self.stamp_ns = stamp_ns
        self.tf_frame = tf_frame
        self.size = size
        self._decode: Callable[[], np.ndarray] | None = decode
        self._result: Future[np.ndarray] | None = None

    @property
    def started(self) -> bool:
        """Tell whether decoding has begun."""
        return self._result is not None

    def start(self, pool: Executor | None) -> None:
        """Begin to decode in a thread of the pool, without a pool at once; no effect the second time."""
        if self._result is not None:
            return
        decode, self._decode = self._decode, None  # which keeps the message alive
        if pool is not None:
            self._result = pool.submit(decode)
            return
        self._result = Future()
        try:
            self._result.set_result(decode())
        except BaseException as error:  # an interrupt too: who waits for this result would wait for ever
            self._result.set_exception(error)
            if not isinstance(error, ImageError):
                raise

    def pixels(self) -> np.ndarray:
        """
        Return uint8 [height, width, 3], RGB, after `start`; waits until it is decoded, but not for ever.

        :raises ImageError: it cannot be decoded, or not in time.
        """
        try:
            return self._result.result(PATIENCE_SECONDS)
        except NotYet:
            raise ImageError(ImageFault.TOO_SLOW, f'it is not decoded after {PATIENCE_SECONDS:g} s') from None


Queues = Mapping[str, Sequence[Picture]]  # camera -> pictures by stamp, oldest first
PictureSet = dict[str, Picture]           # camera -> picture


def newest_set(queues: Queues, names: Sequence[str], slop_ns: int) -> PictureSet:
    """
    Return the newest set of one picture of each named camera whose stamps span at most `slop_ns`, empty without one.

    The camera that lags behind decides; of the pictures of the others those nearest to its picture are taken.
    """
    if not names or not all(queues[name] for name in names):
        return {}
    lagging = min(names, key=lambda name: queues[name][-1].stamp_ns)
    for picture in reversed(queues[lagging]):
        sets = []
        for start_ns in _stamps_between(queues, names, picture.stamp_ns - slop_ns, picture.stamp_ns):
            found = {name: nearest(queues[name], picture.stamp_ns, start_ns, start_ns + slop_ns) for name in names}
            if all(found.values()):
                sets.append(found)
        if sets:
            return min(sets, key=lambda found: sum(abs(other.stamp_ns - picture.stamp_ns) for other in found.values()))
    return {}


def nearest(queue: Sequence[Picture], stamp_ns: int, low_ns: int, high_ns: int) -> Picture | None:
    """Return the picture nearest to a stamp among those within [low_ns, high_ns]."""
    return min((picture for picture in queue if low_ns <= picture.stamp_ns <= high_ns),
               key=lambda picture: abs(picture.stamp_ns - stamp_ns), default=None)


def complete(queues: Queues, core: PictureSet, names: Sequence[str], slop_ns: int) -> PictureSet:
    """Return the set with pictures of the named cameras added as far as the slop allows."""
    chosen = dict(core)
    for name in names:
        if name not in chosen:
            stamps = [picture.stamp_ns for picture in chosen.values()]
            near = nearest(queues[name], max(stamps), max(stamps) - slop_ns, min(stamps) + slop_ns)
            if near is not None:
                chosen[name] = near
    return chosen


def _stamps_between(queues: Queues, names: Sequence[str], low_ns: int, high_ns: int) -> list[int]:
    return sorted({picture.stamp_ns for name in names for picture in queues[name]
                   if low_ns <= picture.stamp_ns <= high_ns})
