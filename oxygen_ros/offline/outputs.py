"""What an offline run gives out: the topics of the inference node in a recording, and the same as plain records."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from oxygen_ros.engine.requests import ActionChunk, FinishReason, TextDelta
from oxygen_ros.memory.entry import Entry
from oxygen_ros.observation import Observation
from oxygen_ros.perception.synchronizer import SynchronizedFrame
from oxygen_ros.replay.bag_writer import BagWriter
from oxygen_ros.replay.message_types import make
from oxygen_ros.robot.chunk import JointChunk, JointCommand, JointTrajectory
from oxygen_ros.robot.safety import LimitedCommand

SECOND = 1_000_000_000
CHUNKS = '/chunks'  # what the model wanted, before alignment, blending and limits; only offline runs write it


@dataclass
class TextRecord:
    """One text from its request to its end. Times in ns; frame 0 if it never started."""

    request_id: int
    task: str
    question: str
    frame_number: int = 0
    stamp_ns: int = 0
    first_ns: int = 0
    last_ns: int = 0
    tokens: int = 0
    text: str = ''
    finish: str = ''
    message: str = ''


@dataclass
class ChunkRecord:
    """One action chunk. Times in ns; `result` is what became of it, a PushResult or the reason why it was rejected."""

    frame_number: int
    stamp_ns: int
    deadline_ns: int
    published_ns: int
    result: str


@dataclass
class Records:
    """Everything that came out, for report and picture."""

    chunks: list[ChunkRecord] = field(default_factory=list)
    skipped: list[tuple[int, str]] = field(default_factory=list)  # time in ns, reason
    texts: dict[int, TextRecord] = field(default_factory=dict)
    memory: list[Entry] = field(default_factory=list)
    frames: list[tuple[int, int]] = field(default_factory=list)  # number, stamp in ns
    refused_frames: dict[str, int] = field(default_factory=dict)  # reason -> number
    command_names: tuple[str, ...] = ()
    command_times: list[int] = field(default_factory=list)
    command_positions: list[np.ndarray] = field(default_factory=list)
    instructions: list[tuple[int, str]] = field(default_factory=list)


class OfflineOutputs:
    """
    Writes results as messages at their virtual time, and keeps records of them.

    :param frames: whether to write the frames too, which takes most of the space.
    """

    def __init__(self, writer: BagWriter, frames: bool = False) -> None:
        self._writer, self._frames = writer, frames
        self.records = Records()

    def frame(self, frame: SynchronizedFrame, now_ns: int) -> None:
        """A frame of the perception part."""
        observation = frame.observation
        self.records.frames.append((observation.number, observation.stamp_ns))
        if self._frames:
            self._writer.write('/frames', now_ns, _frame_message(frame))

    def chunk(self, chunk: ActionChunk, joint_chunk: JointChunk | None, deadline_ns: int, now_ns: int,
              result: str) -> None:
        """A chunk of the model; `joint_chunk` is None if it was rejected."""
        observation = chunk.inputs.observation
        self.records.chunks.append(ChunkRecord(observation.number, observation.stamp_ns, deadline_ns, now_ns, result))
        if joint_chunk is not None:
            times = [joint_chunk.start_ns - observation.stamp_ns + row * joint_chunk.period_ns
                     for row in range(len(joint_chunk.positions))]
            points = [make('trajectory_msgs/msg/JointTrajectoryPoint', positions=row,
                           time_from_start=_time('Duration', time))
                      for row, time in zip(joint_chunk.positions, times)]
            self._writer.write(CHUNKS, now_ns, make(
                'trajectory_msgs/msg/JointTrajectory', header=_header(observation), joint_names=list(joint_chunk.names),
                points=points))

    def trajectory(self, trajectory: JointTrajectory, tf_frame: str, now_ns: int) -> None:
        """The trajectory of a chunk as it is executed."""
        points = [make('trajectory_msgs/msg/JointTrajectoryPoint', positions=positions, velocities=velocities,
                       time_from_start=_time('Duration', time))
                  for positions, velocities, time in
                  zip(trajectory.positions, trajectory.velocities, trajectory.times_ns)]
        header = make('std_msgs/msg/Header', stamp=_time('Time', trajectory.start_ns), frame_id=tf_frame)
        self._writer.write('/joint_trajectory', now_ns, make(
            'trajectory_msgs/msg/JointTrajectory', header=header, joint_names=list(trajectory.names), points=points))

    def command(self, command: JointCommand, limited: LimitedCommand, now_ns: int) -> None:
        """A command at control rate."""
        records = self.records
        records.command_names = command.names
        records.command_times.append(now_ns)
        records.command_positions.append(limited.positions)
        self._writer.write('/joint_commands', now_ns, make(
            'sensor_msgs/msg/JointState', header=make('std_msgs/msg/Header', stamp=_time('Time', now_ns)),
            name=list(command.names), position=limited.positions, velocity=limited.velocities))

    def text(self, delta: TextDelta, now_ns: int) -> TextRecord:
        """A piece of a text of any task; return the record of the text so far."""
        request = delta.request
        record = self.records.texts.setdefault(
            request.request_id, TextRecord(request.request_id, request.task, request.text, first_ns=now_ns))
        if delta.inputs is not None:
            record.frame_number, record.stamp_ns = delta.inputs.number, delta.inputs.stamp_ns
        record.last_ns, record.tokens = now_ns, delta.tokens
        record.text += delta.delta
        record.finish = delta.finish.name if delta.finish is not None else ''
        record.message = delta.message
        return record

    def speech(self, delta: TextDelta, now_ns: int) -> None:
        """A piece of a spoken text."""
        self._writer.write('/speech', now_ns, make(
            'oxygen_ros/msg/TextChunk', header=_header(delta.inputs.observation if delta.inputs else None),
            frame_number=delta.inputs.number if delta.inputs else 0, request_id=delta.request.request_id,
            task=delta.request.task, sequence=delta.sequence, delta=delta.delta,
            finish_reason=0 if delta.finish is None else delta.finish.value, tokens=delta.tokens,
            elapsed=_time('Duration', round(max(0.0, delta.elapsed) * 1e9)),
            message='; '.join(filter(None, [delta.message, delta.left_out])), conversation=delta.request.conversation))

    def string(self, topic: str, text: str, now_ns: int) -> None:
        """A sentence, or a subtask."""
        self._writer.write(topic, now_ns, make('std_msgs/msg/String', data=text))

    def note(self, entry: Entry, now_ns: int) -> None:
        """An entry of memory."""
        self.records.memory.append(entry)
        header = make('std_msgs/msg/Header', stamp=_time('Time', entry.stamp_ns), frame_id=entry.tf_frame)
        message = make(
            'oxygen_ros/msg/MemoryEntry', header=header, frame_number=entry.frame_number, entry_id=entry.entry_id,
            text=entry.text, first_seen=_time('Time', entry.first_seen_ns), last_seen=_time('Time', entry.last_seen_ns),
            count=entry.count)
        if entry.thumbnail:
            message.thumbnail = make('sensor_msgs/msg/CompressedImage', header=header, format='jpeg',
                                     data=np.frombuffer(entry.thumbnail, np.uint8))
        if entry.pose is not None:
            message.pose = _pose_message(entry)
        self._writer.write('/memory', now_ns, message)

    def unfinished(self) -> list[TextRecord]:
        """Return the texts that have not ended."""
        return [record for record in self.records.texts.values() if not record.finish]


def finish_counts(records: Records) -> dict[str, dict[str, int]]:
    """Return task -> reason -> number of texts that ended so, in a fixed order."""
    counts: dict[str, dict[str, int]] = {}
    for record in records.texts.values():
        reasons = counts.setdefault(record.task, {})
        reasons[record.finish or 'UNFINISHED'] = reasons.get(record.finish or 'UNFINISHED', 0) + 1
    order = [reason.name for reason in FinishReason] + ['UNFINISHED']
    return {task: {name: reasons[name] for name in order if name in reasons} for task, reasons in counts.items()}


def plain(record: Any) -> dict[str, Any]:
    """Return a record as a dict for JSON."""
    return asdict(record)


def _time(kind: str, nanoseconds: int) -> Any:
    return make(f'builtin_interfaces/msg/{kind}', sec=nanoseconds // SECOND, nanosec=nanoseconds % SECOND)


def _header(observation: Observation | None) -> Any:
    if observation is None:
        return make('std_msgs/msg/Header')
    return make('std_msgs/msg/Header', stamp=_time('Time', observation.stamp_ns), frame_id=observation.tf_frame)


def _pose_message(entry: Entry) -> Any:
    position = make('geometry_msgs/msg/Point', **dict(zip('xyz', entry.pose.position)))
    orientation = make('geometry_msgs/msg/Quaternion', **dict(zip('xyzw', entry.pose.orientation)))
    header = make('std_msgs/msg/Header', stamp=_time('Time', entry.stamp_ns), frame_id=entry.pose.frame)
    return make('geometry_msgs/msg/PoseStamped', header=header,
                pose=make('geometry_msgs/msg/Pose', position=position, orientation=orientation))


def _frame_message(frame: SynchronizedFrame) -> Any:
    observation = frame.observation
    images = []
    for name, pixels in observation.images.items():
        header = make('std_msgs/msg/Header', stamp=_time('Time', frame.image_stamps[name]),
                      frame_id=frame.image_tf_frames[name])
        images.append(make('sensor_msgs/msg/Image', header=header, height=pixels.shape[0], width=pixels.shape[1],
                           encoding='rgb8', step=3 * pixels.shape[1], data=np.ascontiguousarray(pixels).reshape(-1)))
    velocities = observation.joint_velocities
    joints = make('sensor_msgs/msg/JointState', name=list(observation.joint_names),
                  header=make('std_msgs/msg/Header', stamp=_time('Time', frame.joints.stamp_ns),
                              frame_id=observation.tf_frame),
                  position=observation.joint_positions, velocity=np.zeros(0) if velocities is None else velocities)
    return make('oxygen_ros/msg/Frame', header=_header(observation), frame_number=observation.number,
                camera_names=list(observation.images), images=images, joint_state=joints)
