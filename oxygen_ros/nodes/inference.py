"""
The inference node: one model acts, speaks and remembers.

Threads: the executor's thread owns everything here; the engine lives in the worker's thread, the memory database in a
thread of its own. Callbacks only hand work on, and results come back through the mailbox.
"""

from __future__ import annotations

import argparse
from concurrent.futures import ThreadPoolExecutor
import os
import time
import traceback

from rclpy.clock import Clock, ClockType, JumpThreshold
from rclpy.duration import Duration
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.qos_overriding_options import QoSOverridingOptions
from sensor_msgs.msg import JointState
from std_msgs.msg import String
import torch
from trajectory_msgs.msg import JointTrajectory

from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.requests import ActionChunk, ActionSkipped, AdmissionError, Event, FinishReason, TextDelta, TextRequest
from oxygen_ros.engine.trace import Tracer
from oxygen_ros.engine.worker import Worker, WorkerFailed
from oxygen_ros.errors import OxygenError
from oxygen_ros.memory.store import MemoryStore
from oxygen_ros.msg import EngineStatus, Frame, MemoryEntry, TextChunk
from oxygen_ros.nodes.conversion import observation_from_msg
from oxygen_ros.nodes.inference_diagnostics import InferenceDiagnostics
from oxygen_ros.nodes.inference_messages import (command_to_msg, entry_to_msg, status_to_msg, text_to_msg,
                                                 trajectory_to_msg)
from oxygen_ros.nodes.inference_parameters import PARAMETERS, session_settings
from oxygen_ros.nodes.inference_services import InferenceServices
from oxygen_ros.nodes.mailbox import Mailbox
from oxygen_ros.nodes.parameters import declare_parameters
from oxygen_ros.nodes.runner import add_node_arguments, run_node
from oxygen_ros.robot.joints import MissingJoint
from oxygen_ros.robot.safety import ChunkRejected
from oxygen_ros.tasks.session import Session


class InferenceNode(LifecycleNode):
    """Lifecycle node around a Session and its Worker. The topics are in the design's table and in README.md."""

    def __init__(self) -> None:
        super().__init__('inference')
        self.values = declare_parameters(self, PARAMETERS)
        self.session: Session | None = None
        self.worker: Worker | None = None
        self.memory: MemoryStore | None = None
        self.memory_thread: ThreadPoolExecutor | None = None
        self.active = False
        self.mailbox = Mailbox(self)
        self.diagnostics = InferenceDiagnostics(self)
        qos = {'qos_overriding_options': QoSOverridingOptions.with_default_policies()}
        self._trajectories = self.create_lifecycle_publisher(JointTrajectory, 'joint_trajectory', 10, **qos)
        self._commands = self.create_lifecycle_publisher(JointState, 'joint_commands', 10, **qos)
        self._speech = self.create_lifecycle_publisher(TextChunk, 'speech', 50, **qos)
        self._sentences = self.create_lifecycle_publisher(String, 'speech/sentences', 10, **qos)
        self._memory = self.create_lifecycle_publisher(MemoryEntry, 'memory', 10, **qos)
        self._status = self.create_publisher(EngineStatus, 'status', 10, **qos)
        self.create_subscription(Frame, 'frames', self._on_frame, 2, **qos)
        self.create_subscription(String, 'instruction', self._on_instruction, 10, **qos)
        self.create_subscription(String, 'utterance', self._on_utterance, 10, **qos)
        self._service_calls = InferenceServices(self)
        # Whatever happens to ROS time, the status goes out: it is what says that the clock does not run.
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(1.0, self._publish_status, clock=steady)
        self._jump_handle = self.get_clock().create_jump_callback(
            JumpThreshold(min_forward=None, min_backward=Duration(nanoseconds=-1)), post_callback=self._on_clock_jump)
        self._task_timers = []
        self._tick: float | None = None
        self._skipped = False
        self._failure: OxygenError | None = None
        if self.values['autostart']:
            self._autostart = self.create_timer(0.0, self._start_itself, clock=steady)

    # -- lifecycle ---------------------------------------------------------------------------------------------------

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Load the model, warm it up, open the memory, start the worker."""
        try:
            self._configure()
        except OxygenError as error:
            self._failure = error
            self.get_logger().error(str(error))
        except Exception:  # noqa: B902 - rclpy would swallow it without a word
            self.get_logger().error(f'configure failed:\n{traceback.format_exc()}')
        else:
            return super().on_configure(state)
        self._release()
        return TransitionCallbackReturn.FAILURE

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Start the timers; from now on the robot may be commanded."""
        values, instruction = self.values, self.values['instruction']
        self.session.forget()
        self.session.commands.resume()
        self.worker.post(lambda engine: (engine.statistics.reset(time.monotonic()), engine.set_instruction(instruction)))
        self._tick, self._skipped = None, False
        for rate, callback in ((values['action.rate'], self._action_due), (values['command.rate'], self._command_due),
                               (values['speech.rate'], lambda: self.submit_task('speech')),
                               (values['memory.rate'], lambda: self.submit_task('memory'))):
            if rate > 0:
                self._task_timers.append(self.create_timer(1.0 / rate, callback))
        self.active = True
        return super().on_activate(state)

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Command nothing any more (position-controlled joints hold), end all texts, keep the model."""
        self._make_safe()
        return super().on_deactivate(state)

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free the model and its memory."""
        self._release()
        return super().on_cleanup(state)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """End from any state."""
        self._release()
        return super().on_shutdown(state)

    def destroy_node(self) -> None:
        """Make the robot safe, then end all threads."""
        self._release()
        self._jump_handle.unregister()
        super().destroy_node()

    def _configure(self) -> None:
        values = self.values
        torch.set_num_threads(values['threads'] or max(1, (os.cpu_count() or 2) // 2))
        self.memory = MemoryStore(values['memory.path'], max_entries=values['memory.max_entries'],
                                  max_age_ns=round(values['memory.max_age'] * 1e9) or None,
                                  max_bytes=values['memory.max_bytes'])
        if self.memory.warning:
            self.get_logger().warning(self.memory.warning)
        self.memory_thread = ThreadPoolExecutor(1, 'memory')
        started = time.monotonic()
        try:
            tracer = Tracer(values['trace_file'] or None)
        except OSError as error:
            raise OxygenError(f'trace_file {values["trace_file"]!r} cannot be written: {error.strerror}') from error
        self.session = Session(session_settings(values), self._emit, observation_clock=self._now_ns, tracer=tracer)
        self.worker = Worker(self.session.engine, self._emit)
        self.worker.start()
        spec, cache = self.session.spec, self.session.engine.cache
        self.get_logger().info(f'model {spec.name} (weights: {spec.weights}) ready after '
                               f'{time.monotonic() - started:.1f} s, KV cache {cache.spec.total_bytes() / 2**20:.1f} MiB')
        if spec.random_weights:
            self.get_logger().warning('the weights are random: actions and texts mean nothing'
                                      + ('' if self.may_move else '; no commands are published, allow_random_weights '
                                         'publishes them'))

    def _release(self) -> None:
        """The one way down: safe robot first, then worker, memory, model. May be called in any state, and again."""
        self._make_safe()
        if self.worker is not None:
            if not self.worker.stop():
                self.get_logger().error('the worker thread did not end within 5 s')
            self.mailbox.drain()
        if self.memory_thread is not None:
            self.memory_thread.shutdown(wait=True)
            self.mailbox.drain()
        if self.memory is not None:
            self.memory.close()
        if self.session is not None:
            self.session.engine.close()
        self.session = self.worker = self.memory = self.memory_thread = None

    def _make_safe(self) -> None:
        for timer in self._task_timers:
            self.destroy_timer(timer)
        self._task_timers = []
        if not self.active:
            return
        self.active = False
        self.session.commands.clear()
        if self.worker.alive:
            self.worker.call(Engine.end).result(timeout=10)
        self.mailbox.drain()  # the last pieces of cancelled texts go out while the publishers still may

    def _start_itself(self) -> None:
        self.destroy_timer(self._autostart)
        self.trigger_configure()
        if self._failure is not None:
            raise self._failure
        if self.session is not None:
            self.trigger_activate()

    # -- input -------------------------------------------------------------------------------------------------------

    def _on_frame(self, message: Frame) -> None:
        if not self.active:
            return
        try:
            observation = observation_from_msg(message)
            inputs = self.session.action.policy_input(observation)
        except (ValueError, MissingJoint) as error:
            self.diagnostics.frame_refused(str(error))
            return
        self.diagnostics.frame_arrived(observation.stamp_ns)
        self.session.commands.measured(observation.joint_names, observation.joint_positions)
        self.worker.post(lambda engine: engine.observe(inputs))

    def _on_instruction(self, message: String) -> None:
        if self.active and message.data.strip():
            self.worker.post(lambda engine: engine.set_instruction(message.data))

    def _on_utterance(self, message: String) -> None:
        if self.active and message.data.strip():
            self.submit_task('answer', message.data)

    def submit_task(self, task: str, text: str = '') -> None:
        """Start a text of a task; a refusal is published as a piece of text that says so."""
        self._submit(self.session.texts[task].request(time.monotonic(), text))

    def _submit(self, request: TextRequest) -> None:
        def submit(engine: Engine) -> None:
            try:
                engine.submit(request)
            except AdmissionError as refusal:
                engine.statistics.counters.texts_unfinished += 1
                self._emit(TextDelta(request, None, 0, '', 0, 0.0, FinishReason.DROPPED, str(refusal)))

        self.worker.post(submit)

    # -- timers ------------------------------------------------------------------------------------------------------

    def _action_due(self) -> None:
        now, timer = time.monotonic(), self._task_timers[0]
        # In simulated time the wall time of a period is measured, it is not the period.
        scale = 1.0
        if self._tick is not None and self.get_parameter('use_sim_time').value:
            scale = min(100.0, (now - self._tick) * self.values['action.rate'])
        self._tick = now
        deadline = now + timer.time_until_next_call() * 1e-9 * scale
        if not self.session.commands.stopped:
            self.worker.post(lambda engine: engine.request_action(deadline))

    def _command_due(self) -> None:
        now_ns = self._now_ns()
        command = self.session.commands.command(now_ns)
        if command is not None and self.may_move:
            self._commands.publish(command_to_msg(command[0].names, command[1], now_ns))

    def _publish_status(self) -> None:
        worker, session = self.worker, self.session
        if worker is None or not worker.alive:
            self.diagnostics.publish(None)
            return

        def publish(status) -> None:
            if self.session is session:
                self._status.publish(status_to_msg(status, session.spec, self.values['mode'], self.state_name,
                                                   self.values['action.rate'], self.diagnostics.rejected, self._now_ns()))
                self.diagnostics.publish(status)

        worker.post(lambda engine: self.mailbox.put(lambda status=engine.status(): publish(status)))

    # -- output ------------------------------------------------------------------------------------------------------

    def _emit(self, event: Event | WorkerFailed) -> None:
        """Take an event from the worker's thread into this one."""
        self.mailbox.put(lambda: self._handle(event))

    def _handle(self, event: Event | WorkerFailed) -> None:
        if isinstance(event, ActionChunk):
            self._publish_chunk(event)
        elif isinstance(event, TextDelta):
            self._publish_text(event)
        elif isinstance(event, ActionSkipped):
            if not self._skipped:
                self.get_logger().warning(f'not acting: {event.reason}')
            self._skipped = True
        elif isinstance(event, WorkerFailed):
            self.get_logger().error(f'the engine failed, the robot holds: {event.error!r}')
            if self.active:
                self.trigger_deactivate()
            self.trigger_cleanup()

    def _publish_chunk(self, chunk: ActionChunk) -> None:
        if not self.active:
            return
        if self._skipped:
            self.get_logger().info('acting again')
            self._skipped = False
        try:
            joint_chunk = self.session.action.joint_chunk(chunk)
            _, trajectory = self.session.commands.push(joint_chunk, self._now_ns())
        except (ChunkRejected, MissingJoint) as error:
            self.diagnostics.chunk_rejected(str(error))
            return
        if trajectory is not None and self.may_move:
            self._trajectories.publish(trajectory_to_msg(trajectory, chunk.inputs.observation.tf_frame))

    def _publish_text(self, delta: TextDelta) -> None:
        if delta.request.task == 'memory':
            note = self.session.notes.push(delta)
            if note is not None:
                added = self.memory_thread.submit(self.memory.add, note.text, note.stamp_ns, note.frame_number,
                                                  note.tf_frame)
                added.add_done_callback(lambda future: self.mailbox.put(lambda: self._publish_entry(future)))
            return
        self._speech.publish(text_to_msg(delta))
        for sentence in self.session.sentences.push(delta.request.request_id, delta.delta, delta.finish is not None):
            self._sentences.publish(String(data=sentence))
        self._service_calls.text_arrived(delta)

    def _publish_entry(self, added) -> None:
        if added.cancelled():
            return
        if added.exception() is not None:
            self.diagnostics.memory_failed(str(added.exception()))
            return
        self.diagnostics.memory_worked()
        self._memory.publish(entry_to_msg(added.result()))

    # -- state -------------------------------------------------------------------------------------------------------

    @property
    def may_move(self) -> bool:
        """Whether commands are published."""
        random = self.session.spec.random_weights and not self.values['allow_random_weights']
        return not (self.values['dry_run'] or random)

    @property
    def state_name(self) -> str:
        """State for people: unconfigured, inactive, active or stopped."""
        if self.session is None:
            return 'unconfigured'
        return 'inactive' if not self.active else 'stopped' if self.session.commands.stopped else 'active'

    def _now_ns(self) -> int:
        return self.get_clock().now().nanoseconds

    def _on_clock_jump(self, jump) -> None:
        if self.session is None:
            return
        self.get_logger().warning('the clock jumped back: frames and chunks are dropped')
        self.session.commands.clear()
        self.worker.post(Engine.forget_observations)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `oxygen_ros inference`."""
    add_node_arguments(parser, PARAMETERS)


def main(arguments: argparse.Namespace) -> int:
    """Run the node until it ends; return the exit code."""
    return run_node(InferenceNode, arguments)
