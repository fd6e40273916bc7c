"""Pairs pictures of several cameras and joint states by their stamps. No ROS here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from oxygen_ros.observation import Observation
from oxygen_ros.perception.images import ImageError, ImageFault
from oxygen_ros.perception.joint_merger import JointMerger, JointSnapshot
from oxygen_ros.perception.pairing import Picture, PictureSet, complete, newest_set
from oxygen_ros.perception.sync_options import JOINTS, Camera, MissingPolicy, StampPolicy, SyncEvent, SyncOptions


@dataclass(frozen=True)
class SynchronizedFrame:
    """An observation with the stamps and TF frames of its parts."""

    observation: Observation
    image_stamps: Mapping[str, int]
    image_tf_frames: Mapping[str, str]
    joints: JointSnapshot


class FrameSynchronizer:
    """
    Makes observations from pictures and joint states.

    Only the newest complete set counts: after a delay there is one frame, not a burst of old ones. Every picture of a
    required camera is used once at most. Memory is bounded. Not thread-safe: one thread owns it.

    :param cameras: at least one, with unique names.
    :param joints: merges the joint states; the frame takes its snapshot at the stamp of the frame.
    :param pool: threads that decode, so that the cameras of a frame do not wait for each other; None decodes inline.
    """

    def __init__(self, cameras: Sequence[Camera], joints: JointMerger, options: SyncOptions | None = None,
                 pool: Executor | None = None):
        if not cameras or len({camera.name for camera in cameras}) != len(cameras):
            raise ValueError(f'at least one camera and unique names, not {[camera.name for camera in cameras]}')
        self.cameras = tuple(cameras)
        self.joints = joints
        self.options = options or SyncOptions()
        self._pool = pool
        self.counters: dict[str, Counter[SyncEvent]] = {
            name: Counter() for name in (*(camera.name for camera in cameras), JOINTS)}
        self.faults: dict[str, Counter[ImageFault]] = {camera.name: Counter() for camera in cameras}
        self.last_fault: dict[str, str] = {}  # input -> text of the last fault
        self._period_ns = round(1e9 / self.options.rate_hz) if self.options.rate_hz else 0
        self._number = 0
        self.clear()

    def clear(self) -> None:
        """Forget all pictures and joint states (the clock jumped). Counters and frame numbers go on."""
        names = [camera.name for camera in self.cameras]
        self._waiting: dict[str, list[Picture]] = {name: [] for name in names}  # by stamp, newer than the last used
        self._last: dict[str, Picture | None] = dict.fromkeys(names)            # last used
        self._arrival_ns: dict[str, int | None] = dict.fromkeys(names)
        self._frame_stamp_ns = 0
        self._due_ns = 0
        self._early: Picture | None = None  # the newest picture, if it is worth decoding before its frame is complete
        self._core_since_ns: int | None = None
        self.joints.clear()

    def add_image(self, camera: str, stamp_ns: int, now_ns: int, decode: Callable[[], np.ndarray],
                  tf_frame: str = '', size: int = 0) -> SyncEvent:
        """
        Take a picture.

        :param stamp_ns: its header stamp, 0 if unset.
        :param now_ns: node clock.
        :param decode: gives uint8 [height, width, 3] RGB or raises ImageError; called once at most, when needed.
        :param size: bytes that `decode` keeps in memory.
        :return: RECEIVED if it waits for its frame now, otherwise why not.
        """
        counters = self.counters[camera]
        counters[SyncEvent.RECEIVED] += 1
        stamp_ns, refused = self._stamp(camera, stamp_ns, now_ns)
        if refused is None:
            waiting, last = self._waiting[camera], self._last[camera]
            newest = waiting[-1] if waiting else last
            if newest is not None and stamp_ns < newest.stamp_ns - self.options.restart_ns:
                counters[SyncEvent.RESTART] += 1
                self.clear()
                waiting, last = self._waiting[camera], None
            if last is not None and stamp_ns <= last.stamp_ns:
                refused = SyncEvent.DUPLICATE if stamp_ns == last.stamp_ns else SyncEvent.LATE
            elif any(picture.stamp_ns == stamp_ns for picture in waiting):
                refused = SyncEvent.DUPLICATE
        if refused is not None:
            counters[refused] += 1
            return refused
        self._arrival_ns[camera] = now_ns
        picture = Picture(camera, stamp_ns, tf_frame, decode, size)
        waiting.append(picture)
        waiting.sort(key=lambda other: other.stamp_ns)
        while len(waiting) > self.options.queue or len(waiting) > 1 and sum(
                other.size for other in waiting[:-1]) > self.options.queue_bytes:
            counters[SyncEvent.SKIPPED] += 1
            del waiting[0]
        if self._is_likely_next(picture, now_ns):
            self._early = picture
        return SyncEvent.RECEIVED

    def refuse_image(self, camera: str, error: ImageError) -> None:
        """Count a picture that is seen to be unusable on arrival."""
        self.counters[camera][SyncEvent.RECEIVED] += 1
        self._count_fault(camera, error)

    def refuse_joints(self, text: str) -> None:
        """Count a joint state that cannot be read; the text says why."""
        self.counters[JOINTS][SyncEvent.RECEIVED] += 1
        self.counters[JOINTS][SyncEvent.UNUSABLE] += 1
        self.last_fault[JOINTS] = text

    def add_joints(self, names: Sequence[str], positions: Sequence[float], velocities: Sequence[float],
                   stamp_ns: int, now_ns: int) -> SyncEvent:
        """Take a joint state; arguments as `JointMerger.add`. Returns RECEIVED, or why it was refused."""
        counters = self.counters[JOINTS]
        counters[SyncEvent.RECEIVED] += 1
        stamp_ns, refused = self._stamp(JOINTS, stamp_ns, now_ns)
        if refused is not None:
            counters[refused] += 1
            return refused
        self.joints.add(names, positions, velocities, stamp_ns)
        return SyncEvent.RECEIVED

    def take(self, now_ns: int) -> SynchronizedFrame | None:
        """
        Return the next frame if there is one.

        To be called after every `add_image`, and now and then because frames without a camera come by time.

        :param now_ns: node clock.
        """
        while True:
            early, self._early = self._early, None
            pictures = self._choose(now_ns)
            if not pictures:
                if early is not None:
                    early.start(self._pool)  # done before the last picture of the frame arrives
                return None
            stamp_ns = max(picture.stamp_ns for picture in pictures.values())
            if not self._is_due(stamp_ns) or stamp_ns <= self._frame_stamp_ns:
                self._consume(pictures, SyncEvent.SKIPPED)
                continue
            joints = self.joints.snapshot(stamp_ns)
            if self.options.require_joints and (joints.missing or not joints.names):
                return None
            to_decode = [picture for picture in pictures.values() if not picture.started]
            for number, picture in enumerate(to_decode, start=1):
                picture.start(self._pool if number < len(to_decode) else None)  # the last one here: no thread to wake
            usable = [self._is_usable(picture) for picture in pictures.values()]
            if all(usable):
                break  # otherwise the bad ones have left their queues: look for a set without them
        self._consume(pictures, SyncEvent.USED)
        self._due_ns = max(stamp_ns, self._due_ns) + self._period_ns
        self._frame_stamp_ns = stamp_ns
        self._number += 1
        observation = Observation(
            number=self._number, stamp_ns=stamp_ns, tf_frame=self.options.tf_frame,
            images={camera.name: pictures[camera.name].pixels() for camera in self.cameras if camera.name in pictures},
            joint_names=joints.names, joint_positions=joints.positions, joint_velocities=joints.velocities)
        return SynchronizedFrame(
            observation, joints=joints,
            image_stamps={name: picture.stamp_ns for name, picture in pictures.items()},
            image_tf_frames={name: picture.tf_frame for name, picture in pictures.items()})

    def stamp_gap_ns(self) -> int:
        """Return newest minus oldest of the newest stamps of all cameras that wait; 0 with less than two."""
        newest = [waiting[-1].stamp_ns for waiting in self._waiting.values() if waiting]
        return max(newest) - min(newest) if len(newest) > 1 else 0

    def _stamp(self, name: str, stamp_ns: int, now_ns: int) -> tuple[int, SyncEvent | None]:
        """Return the time a message counts as taken at, and why it is refused if it is."""
        if now_ns <= 0:
            return stamp_ns, SyncEvent.NO_CLOCK
        if self.options.stamps is StampPolicy.RECEIVE:
            return now_ns, None
        if stamp_ns <= 0:
            if self.options.stamps is StampPolicy.HEADER:
                return stamp_ns, SyncEvent.ZERO_STAMP
            self.counters[name][SyncEvent.RECEIVE_TIME] += 1
            return now_ns, None
        return stamp_ns, SyncEvent.FUTURE if stamp_ns > now_ns + self.options.future_ns else None

    def _is_due(self, stamp_ns: int) -> bool:
        """
        Tell whether the rate allows a frame of this stamp. Stamps count, so load and network change nothing.

        A frame may come half a period early and the next due time still counts from the old one: so the rate holds on
        average and the jitter of a camera with just this rate costs no frames.
        """
        return stamp_ns >= self._due_ns - self._period_ns // 2

    def _is_alive(self, name: str, now_ns: int) -> bool:
        arrival_ns = self._arrival_ns[name]
        return arrival_ns is not None and now_ns - arrival_ns <= self.options.alive_ns

    def _is_likely_next(self, picture: Picture, now_ns: int) -> bool:
        """Tell whether a new picture will most likely be part of the next frame; at most one of a camera at a time."""
        waiting = self._waiting[picture.camera]
        return (waiting[-1] is picture and self._is_due(picture.stamp_ns)
                and not any(other.started for other in waiting)
                and all(self._is_alive(camera.name, now_ns) for camera in self.cameras
                        if camera.missing is MissingPolicy.REQUIRED))

    def _is_usable(self, picture: Picture) -> bool:
        """Wait for a picture that is being decoded; if that fails it is counted and leaves the queue."""
        try:
            picture.pixels()
            return True
        except ImageError as error:
            self._count_fault(picture.camera, error)
            self._waiting[picture.camera].remove(picture)
            return False

    def _count_fault(self, camera: str, error: ImageError) -> None:
        self.counters[camera][SyncEvent.UNUSABLE] += 1
        self.faults[camera][error.fault] += 1
        self.last_fault[camera] = str(error)

    def _choose(self, now_ns: int) -> PictureSet:
        """Return the pictures of the next frame by camera, empty if there is none yet."""
        required = [camera.name for camera in self.cameras if camera.missing is MissingPolicy.REQUIRED]
        expected = [camera.name for camera in self.cameras
                    if camera.name in required or self._is_alive(camera.name, now_ns)]
        chosen = newest_set(self._waiting, expected, self.options.slop_ns)
        if not chosen:
            core = newest_set(self._waiting, required, self.options.slop_ns) if required else self._newest_picture()
            if not core:
                self._core_since_ns = None
                return {}
            if self._core_since_ns is None:
                self._core_since_ns = now_ns
            if abs(now_ns - self._core_since_ns) < self.options.wait_ns:
                return {}
            chosen = complete(self._waiting, core, list(self._waiting), self.options.slop_ns)
        stamp_ns = max(picture.stamp_ns for picture in chosen.values())
        for camera in self.cameras:  # what is missing still may be held
            waiting, last = self._waiting[camera.name], self._last[camera.name]
            if camera.missing is MissingPolicy.HOLD and camera.name not in chosen:
                held = max((picture for picture in (last, *waiting) if picture and picture.stamp_ns <= stamp_ns),
                           key=lambda picture: picture.stamp_ns, default=None)
                if held is not None and stamp_ns - held.stamp_ns <= camera.hold_ns:
                    chosen[camera.name] = held
        return chosen

    def _newest_picture(self) -> PictureSet:
        """Return the newest waiting picture of all cameras."""
        newest = max((waiting[-1] for waiting in self._waiting.values() if waiting),
                     key=lambda picture: picture.stamp_ns, default=None)
        return {newest.camera: newest} if newest else {}

    def _consume(self, pictures: Mapping[str, Picture], event: SyncEvent) -> None:
        """Remove the pictures and all older ones from the queues."""
        self._core_since_ns = None
        for name, picture in pictures.items():
            waiting = self._waiting[name]
            if picture in waiting:  # not if it is held from the last frame
                self.counters[name][event] += 1
                self.counters[name][SyncEvent.SKIPPED] += waiting.index(picture)
                self._waiting[name] = waiting[waiting.index(picture) + 1:]
                self._last[name] = picture
