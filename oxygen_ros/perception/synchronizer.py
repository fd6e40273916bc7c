"""Pairs pictures of several cameras and joint states by their stamps. No ROS here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from oxygen_ros.observation import Observation
from oxygen_ros.perception.camera_queue import CameraQueue
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
        self._queues = {camera.name: CameraQueue(camera, self.options) for camera in cameras}
        self._joint_counters: Counter[SyncEvent] = Counter()
        self._joint_fault = ''
        self._period_ns = round(1e9 / self.options.rate_hz) if self.options.rate_hz else 0
        self._number = 0
        self.clear()

    @property
    def counters(self) -> dict[str, Counter[SyncEvent]]:
        """Camera name, or JOINTS -> what became of its messages."""
        return {**{name: queue.counters for name, queue in self._queues.items()}, JOINTS: self._joint_counters}

    @property
    def faults(self) -> dict[str, Counter[ImageFault]]:
        """Camera name -> why its pictures were unusable."""
        return {name: queue.faults for name, queue in self._queues.items()}

    @property
    def last_fault(self) -> dict[str, str]:
        """Camera name, or JOINTS -> text of the last fault, of those that had one."""
        texts = {**{name: queue.last_fault for name, queue in self._queues.items()}, JOINTS: self._joint_fault}
        return {name: text for name, text in texts.items() if text}

    def clear(self) -> None:
        """Forget all pictures and joint states (the clock jumped). Counters and frame numbers go on."""
        for queue in self._queues.values():
            queue.clear()
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
        queue = self._queues[camera]
        queue.counters[SyncEvent.RECEIVED] += 1
        stamp_ns, refused = self._stamp(queue.counters, stamp_ns, now_ns)
        if refused is None and queue.went_back(stamp_ns):
            queue.counters[SyncEvent.RESTART] += 1
            self.clear()
        refused = refused or queue.why_not(stamp_ns)
        if refused is not None:
            queue.counters[refused] += 1
            return refused
        picture = Picture(camera, stamp_ns, tf_frame, decode, size)
        queue.add(picture, now_ns)
        if self._is_likely_next(picture, now_ns):
            self._early = picture
        return SyncEvent.RECEIVED

    def refuse_image(self, camera: str, error: ImageError) -> None:
        """Count a picture that is seen to be unusable on arrival."""
        self._queues[camera].counters[SyncEvent.RECEIVED] += 1
        self._queues[camera].count_fault(error)

    def refuse_joints(self, text: str) -> None:
        """Count a joint state that cannot be read; the text says why."""
        self._joint_counters[SyncEvent.RECEIVED] += 1
        self._joint_counters[SyncEvent.UNUSABLE] += 1
        self._joint_fault = text

    def add_joints(self, names: Sequence[str], positions: Sequence[float], velocities: Sequence[float],
                   stamp_ns: int, now_ns: int) -> SyncEvent:
        """Take a joint state; arguments as `JointMerger.add`. Returns RECEIVED, or why it was refused."""
        self._joint_counters[SyncEvent.RECEIVED] += 1
        stamp_ns, refused = self._stamp(self._joint_counters, stamp_ns, now_ns)
        if refused is not None:
            self._joint_counters[refused] += 1
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
            usable = [self._queues[picture.camera].is_usable(picture) for picture in pictures.values()]
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
        newest = [queue.waiting[-1].stamp_ns for queue in self._queues.values() if queue.waiting]
        return max(newest) - min(newest) if len(newest) > 1 else 0

    def _stamp(self, counters: Counter[SyncEvent], stamp_ns: int, now_ns: int) -> tuple[int, SyncEvent | None]:
        """Return the time a message counts as taken at, and why it is refused if it is."""
        if now_ns <= 0:
            return stamp_ns, SyncEvent.NO_CLOCK
        if self.options.stamps is StampPolicy.RECEIVE:
            return now_ns, None
        if stamp_ns <= 0:
            if self.options.stamps is StampPolicy.HEADER:
                return stamp_ns, SyncEvent.ZERO_STAMP
            counters[SyncEvent.RECEIVE_TIME] += 1
            return now_ns, None
        return stamp_ns, SyncEvent.FUTURE if stamp_ns > now_ns + self.options.future_ns else None

    def _is_due(self, stamp_ns: int) -> bool:
        """
        Tell whether the rate allows a frame of this stamp. Stamps count, so load and network change nothing.

        A frame may come half a period early and the next due time still counts from the old one: so the rate holds on
        average and the jitter of a camera with just this rate costs no frames.
        """
        return stamp_ns >= self._due_ns - self._period_ns // 2

    def _is_likely_next(self, picture: Picture, now_ns: int) -> bool:
        """Tell whether a new picture will most likely be part of the next frame; at most one of a camera at a time."""
        waiting = self._queues[picture.camera].waiting
        return (waiting[-1] is picture and self._is_due(picture.stamp_ns)
                and not any(other.started for other in waiting)
                and all(queue.is_alive(now_ns) for queue in self._queues.values()
                        if queue.camera.missing is MissingPolicy.REQUIRED))

    def _choose(self, now_ns: int) -> PictureSet:
        """Return the pictures of the next frame by camera, empty if there is none yet."""
        waiting = {name: queue.waiting for name, queue in self._queues.items()}
        required = [camera.name for camera in self.cameras if camera.missing is MissingPolicy.REQUIRED]
        expected = [name for name, queue in self._queues.items() if name in required or queue.is_alive(now_ns)]
        chosen = newest_set(waiting, expected, self.options.slop_ns)
        if not chosen:
            core = newest_set(waiting, required, self.options.slop_ns) if required else self._newest_picture()
            if not core:
                self._core_since_ns = None
                return {}
            if self._core_since_ns is None:
                self._core_since_ns = now_ns
            if abs(now_ns - self._core_since_ns) < self.options.wait_ns:
                return {}
            chosen = complete(waiting, core, list(waiting), self.options.slop_ns)
        stamp_ns = max(picture.stamp_ns for picture in chosen.values())
        for name, queue in self._queues.items():  # what is missing still may be held
            if queue.camera.missing is MissingPolicy.HOLD and name not in chosen:
                held = queue.held(stamp_ns)
                if held is not None:
                    chosen[name] = held
        return chosen

    def _newest_picture(self) -> PictureSet:
        """Return the newest waiting picture of all cameras."""
        newest = max((queue.waiting[-1] for queue in self._queues.values() if queue.waiting),
                     key=lambda picture: picture.stamp_ns, default=None)
        return {newest.camera: newest} if newest else {}

    def _consume(self, pictures: Mapping[str, Picture], event: SyncEvent) -> None:
        """Remove the pictures and all older ones from the queues."""
        self._core_since_ns = None
        for name, picture in pictures.items():
            self._queues[name].consume(picture, event)
