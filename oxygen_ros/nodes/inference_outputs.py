"""What the inference node publishes of a session's results."""

from __future__ import annotations

from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from rclpy.duration import Duration
from sensor_msgs.msg import JointState
from std_msgs.msg import String
from trajectory_msgs.msg import JointTrajectory

from oxygen_ros.engine.requests import ActionChunk, ActionFailed, ActionSkipped, Event, TextDelta
from oxygen_ros.msg import MemoryEntry, TextChunk
from oxygen_ros.nodes.forward_controller import ForwardController
from oxygen_ros.nodes.inference_messages import command_to_msg, entry_to_msg, text_to_msg, trajectory_to_msg
from oxygen_ros.robot.chunk import JointCommand
from oxygen_ros.robot.joints import MissingJoint
from oxygen_ros.robot.safety import ChunkRejected, LimitedCommand

if TYPE_CHECKING:
    from oxygen_ros.nodes.inference import InferenceNode


class InferenceOutputs:
    """
    Publishers of chunks, commands, texts and notes. They publish while the node is active only.

    :param node: its session and memory are used; all calls in the executor's thread.
    :param qos: options of every publisher.
    """

    def __init__(self, node: InferenceNode, qos: dict[str, Any]) -> None:
        self._node = node
        self._trajectories = node.create_lifecycle_publisher(JointTrajectory, 'joint_trajectory', 10, **qos)
        self._commands = node.create_lifecycle_publisher(JointState, 'joint_commands', 10, **qos)
        self._speech = node.create_lifecycle_publisher(TextChunk, 'speech', 50, **qos)
        self._sentences = node.create_lifecycle_publisher(String, 'speech/sentences', 10, **qos)
        self._memory = node.create_lifecycle_publisher(MemoryEntry, 'memory', 10, **qos)
        self._subtasks = node.create_lifecycle_publisher(String, 'subtask', 10, **qos)
        name = node.values['command.forward_controller']
        self.controller = ForwardController(node, name) if name else None
        self._skipping = False

    def publish(self, event: Event) -> None:
        """Publish what an event of the engine makes."""
        if isinstance(event, TextDelta):
            self._publish_text(event)
        elif not self._node.active:
            return  # a late chunk must not move a robot that was made safe
        elif isinstance(event, ActionChunk):
            if self._node.forgetting:
                return
            self._note_skipping(False)
            self._publish_chunk(event)
        elif isinstance(event, ActionFailed):
            self._node.diagnostics.action_failed(event.reason)
        elif isinstance(event, ActionSkipped):
            self._note_skipping(True, event.reason)

    def publish_command(self, command: JointCommand, limited: LimitedCommand, now_ns: int) -> None:
        """Publish a command for this moment."""
        self._node.diagnostics.commanded(command.source)
        if self._node.may_move:
            self._commands.publish(command_to_msg(command.names, limited, now_ns))
            if self.controller is not None:
                self.controller.publish(command.names, limited.positions)

    def hold(self) -> None:
        """Stop the command stream, and make a trajectory controller hold as well."""
        node = self._node
        trajectory = node.session.commands.stop(node.now_ns())
        if trajectory is not None and node.may_move:
            self._trajectories.publish(trajectory_to_msg(trajectory, ''))

    def wait_until_heard(self, seconds: float) -> None:
        """Wait until all have what was sent last: the end of the process would take it back."""
        self._trajectories.wait_for_all_acked(Duration(seconds=seconds))

    def _publish_chunk(self, chunk: ActionChunk) -> None:
        node = self._node
        try:
            joint_chunk = node.session.action.joint_chunk(chunk)
            result, trajectory = node.session.commands.push(joint_chunk, node.now_ns())
        except (ChunkRejected, MissingJoint) as error:
            node.diagnostics.chunk_rejected(str(error))
            node.watchdog.chunk(accepted=False)
            return
        node.watchdog.chunk(accepted=True)
        node.diagnostics.chunk_taken(result)
        if trajectory is not None and node.may_move:
            self._trajectories.publish(trajectory_to_msg(trajectory, chunk.inputs.observation.tf_frame))

    def _publish_text(self, delta: TextDelta) -> None:
        node = self._node
        if delta.request.task == 'subtask':
            self._follow_subtask(delta)
            return
        if delta.request.task != 'memory':
            self._speech.publish(text_to_msg(delta))
            finished = delta.finish is not None
            for sentence in node.session.sentences.push(delta.request.request_id, delta.delta, finished):
                self._sentences.publish(String(data=sentence))
            node.service_calls.text_arrived(delta)
            return
        note = node.session.notes.push(delta)
        if note is not None:
            added = node.texts.remember(note)
            added.add_done_callback(lambda future: node.mailbox.put(lambda: self._publish_entry(future)))

    def _follow_subtask(self, delta: TextDelta) -> None:
        node = self._node
        subtask = node.session.subtasks.push(delta)
        # One that leads to what the robot was told before comes too late.
        if subtask and node.active and delta.request.text == node.instruction:
            node.worker.post(lambda engine: engine.set_instruction(subtask))
            self._subtasks.publish(String(data=subtask))

    def _publish_entry(self, added: Future) -> None:
        if added.cancelled():
            return
        if added.exception() is not None:
            self._node.diagnostics.memory_failed(str(added.exception()))
            return
        self._node.diagnostics.memory_worked()
        self._memory.publish(entry_to_msg(added.result()))

    def _note_skipping(self, skipping: bool, reason: str = '') -> None:
        """Log when acting stops and when it goes on, not in between."""
        if skipping and not self._skipping:
            self._node.get_logger().warning(f'not acting: {reason}')
        elif self._skipping and not skipping:
            self._node.get_logger().info('acting again')
        self._skipping = skipping
