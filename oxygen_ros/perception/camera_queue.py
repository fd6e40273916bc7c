"""The pictures of one camera that wait for their frame. No ROS here."""

from __future__ import annotations

from collections import Counter

from oxygen_ros.perception.images import ImageError, ImageFault
from oxygen_ros.perception.pairing import Picture
from oxygen_ros.perception.sync_options import Camera, SyncEvent, SyncOptions


class CameraQueue:
    """
    Keeps what waits and what was used last, and counts what becomes of the pictures. Memory is bounded.

    :ivar waiting: by stamp, all newer than the last used one.
    :ivar last: the one that was used last, None before.
    """

    def __init__(self, camera: Camera, options: SyncOptions):
        self.camera = camera
        self.counters: Counter[SyncEvent] = Counter()
        self.faults: Counter[ImageFault] = Counter()
        self.last_fault = ''
        self._options = options
        self.clear()

    def clear(self) -> None:
        """Forget all pictures. Counters go on."""
        self.waiting: list[Picture] = []
        self.last: Picture | None = None
        self._arrival_ns: int | None = None

    def went_back(self, stamp_ns: int) -> bool:
        """Tell whether a stamp is so far behind the others that they started anew."""
        newest = self.waiting[-1] if self.waiting else self.last
        return newest is not None and stamp_ns < newest.stamp_ns - self._options.restart_ns

    def why_not(self, stamp_ns: int) -> SyncEvent | None:
        """Return why a picture of this stamp is refused; None if it is not."""
        if self.last is not None and stamp_ns < self.last.stamp_ns:
            return SyncEvent.LATE
        known = (self.last, *self.waiting)
        return SyncEvent.DUPLICATE if any(other and other.stamp_ns == stamp_ns for other in known) else None

    def add(self, picture: Picture, now_ns: int) -> None:
        """Take a picture; the oldest are skipped if there are too many or too large ones."""
        self._arrival_ns = now_ns
        self.waiting.append(picture)
        self.waiting.sort(key=lambda other: other.stamp_ns)
        while len(self.waiting) > self._options.queue or len(self.waiting) > 1 and sum(
                other.size for other in self.waiting[:-1]) > self._options.queue_bytes:
            self.counters[SyncEvent.SKIPPED] += 1
            del self.waiting[0]

    def is_alive(self, now_ns: int) -> bool:
        """Tell whether pictures come."""
        return self._arrival_ns is not None and now_ns - self._arrival_ns <= self._options.alive_ns

    def held(self, stamp_ns: int) -> Picture | None:
        """Return the newest picture up to a stamp, used or not, if it is young enough to be held."""
        held = max((picture for picture in (self.last, *self.waiting) if picture and picture.stamp_ns <= stamp_ns),
                   key=lambda picture: picture.stamp_ns, default=None)
        return held if held is not None and stamp_ns - held.stamp_ns <= self.camera.hold_ns else None

    def consume(self, picture: Picture, event: SyncEvent) -> None:
        """Remove a picture and all older ones; no effect on one that is held from the last frame."""
        if picture in self.waiting:
            index = self.waiting.index(picture)
            self.counters[event] += 1
            self.counters[SyncEvent.SKIPPED] += index
            self.waiting = self.waiting[index + 1:]
            self.last = picture

    def is_usable(self, picture: Picture) -> bool:
        """Wait for a picture that is being decoded; if that fails it is counted and leaves the queue."""
        try:
            picture.pixels()
            return True
        except ImageError as error:
            self.count_fault(error)
            self.waiting.remove(picture)
            return False

    def count_fault(self, error: ImageError) -> None:
        """Count a picture that cannot be used."""
        self.counters[SyncEvent.UNUSABLE] += 1
        self.faults[error.fault] += 1
        self.last_fault = str(error)
