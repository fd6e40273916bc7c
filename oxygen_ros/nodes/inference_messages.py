"""From the results of a session to the messages of the inference node."""

from __future__ import annotations

import array

from builtin_interfaces.msg import Duration
from geometry_msgs.msg import Point, PoseStamped, Quaternion
from geometry_msgs.msg import Pose as PoseMsg
from sensor_msgs.msg import JointState
from std_msgs.msg import Header
from trajectory_msgs.msg import JointTrajectory as JointTrajectoryMsg
from trajectory_msgs.msg import JointTrajectoryPoint

from oxygen_ros.engine.requests import TextDelta
from oxygen_ros.engine.statistics import EngineStatus as Status
from oxygen_ros.memory.entry import Entry, Pose
from oxygen_ros.models.interface import ModelSpec
from oxygen_ros.msg import EngineStatus, MemoryEntry, TextChunk
from oxygen_ros.nodes.conversion import NANOSECONDS, time_to_msg
from oxygen_ros.robot.chunk import JointTrajectory
from oxygen_ros.robot.safety import LimitedCommand


def duration_to_msg(nanoseconds: int) -> Duration:
    """Return nanoseconds, not negative, as a Duration message."""
    return Duration(sec=nanoseconds // NANOSECONDS, nanosec=nanoseconds % NANOSECONDS)


def text_to_msg(delta: TextDelta) -> TextChunk:
    """Return an increment of a text."""
    message = TextChunk(
        request_id=delta.request.request_id, task=delta.request.task, sequence=delta.sequence, delta=delta.delta,
        finish_reason=TextChunk.NOT_FINISHED if delta.finish is None else delta.finish.value, tokens=delta.tokens,
        elapsed=duration_to_msg(round(max(0.0, delta.elapsed) * 1e9)), message=explanation(delta),
        conversation=delta.request.conversation)
    if delta.inputs is not None:
        observation = delta.inputs.observation
        message.header = Header(stamp=time_to_msg(observation.stamp_ns), frame_id=observation.tf_frame)
        message.frame_number = observation.number
    return message


def explanation(delta: TextDelta) -> str:
    """Return why a text ended as it did, and what its prompt lacked."""
    return '; '.join(filter(None, [delta.message, delta.left_out]))


def entry_to_msg(entry: Entry) -> MemoryEntry:
    """Return an entry of the memory store."""
    message = MemoryEntry(
        header=Header(stamp=time_to_msg(entry.stamp_ns), frame_id=entry.tf_frame), frame_number=entry.frame_number,
        entry_id=entry.entry_id, text=entry.text, first_seen=time_to_msg(entry.first_seen_ns),
        last_seen=time_to_msg(entry.last_seen_ns), count=entry.count)
    if entry.thumbnail:
        message.thumbnail.header, message.thumbnail.format = message.header, 'jpeg'
        message.thumbnail.data = array.array('B', entry.thumbnail)
    if entry.pose is not None:
        message.pose = pose_to_msg(entry.pose, entry.stamp_ns)
    return message


def pose_to_msg(pose: Pose, stamp_ns: int) -> PoseStamped:
    """Return a pose at a time."""
    return PoseStamped(header=Header(stamp=time_to_msg(stamp_ns), frame_id=pose.frame), pose=PoseMsg(
        position=Point(**dict(zip('xyz', map(float, pose.position)))),
        orientation=Quaternion(**dict(zip('xyzw', map(float, pose.orientation))))))


def trajectory_to_msg(trajectory: JointTrajectory, tf_frame: str) -> JointTrajectoryMsg:
    """
    Return the steps of a chunk from now on.

    The stamp is the moment that `time_from_start` counts from, as controllers want it.
    """
    return JointTrajectoryMsg(
        header=Header(stamp=time_to_msg(trajectory.start_ns), frame_id=tf_frame),
        joint_names=list(trajectory.names),
        points=[JointTrajectoryPoint(positions=array.array('d', positions), velocities=array.array('d', velocities),
                                     time_from_start=duration_to_msg(time_ns))
                for positions, velocities, time_ns in
                zip(trajectory.positions, trajectory.velocities, trajectory.times_ns)])


def command_to_msg(names: tuple[str, ...], command: LimitedCommand, now_ns: int) -> JointState:
    """Return a command for this moment."""
    return JointState(header=Header(stamp=time_to_msg(now_ns)), name=list(names),
                      position=array.array('d', command.positions), velocity=array.array('d', command.velocities))


def status_to_msg(status: Status, spec: ModelSpec, mode: str, state: str, action_rate: float, rejected: int,
                  now_ns: int) -> EngineStatus:
    """Return a snapshot of the engine; `rejected` counts chunks that the safety check dropped."""
    counters = status.counters
    return EngineStatus(
        header=Header(stamp=time_to_msg(now_ns)), model=spec.name, weights=spec.weights, mode=mode, state=state,
        random_weights=spec.random_weights, window=duration_to_msg(round(status.window * 1e9)),
        action_rate_set=action_rate, action_rate=status.action_rate,
        lateness_p50_ms=1e3 * status.lateness_p50, lateness_p99_ms=1e3 * status.lateness_p99,
        lateness_max_ms=1e3 * status.lateness_max, cycle_ms=1e3 * status.cycle,
        tokens_per_second=status.tokens_per_second, running_branches=status.running, waiting_requests=status.waiting,
        frames_resident=status.frames_resident, kv_bytes=status.kv_bytes, kv_bytes_peak=status.kv_bytes_peak,
        kv_bytes_allocated=status.kv_bytes_allocated, kv_bytes_budget=status.kv_bytes_budget,
        prefill_ms=1e3 * status.prefill, denoise_ms=1e3 * status.denoise, decode_step_ms=1e3 * status.decode_step,
        chunks=counters.chunks, deadline_misses=counters.deadline_misses,
        late_decodes=counters.late_decodes, stale_frames=counters.stale_frames,
        rejected_chunks=rejected, texts_finished=counters.texts_finished, texts_unfinished=counters.texts_unfinished,
        notes_dropped=counters.notes_dropped, frames_received=counters.frames_received, tokens=counters.tokens,
        action_failures=counters.action_failures)
