"""
The inference node: one model acts, speaks and remembers.

Threads: the executor's thread owns everything here; the engine lives in the worker's thread, the memory database in a
thread of its own. Callbacks only hand work on, and results come back through the mailbox.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable

import torch
from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn
from rclpy.qos_overriding_options import QoSOverridingOptions
from std_msgs.msg import String

from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.requests import Event, TextDelta, instruction_problem
from oxygen_ros.engine.trace import Tracer
from oxygen_ros.engine.worker import Worker, WorkerFailed
from oxygen_ros.errors import ConfigError, OxygenError
from oxygen_ros.memory.keeper import MemoryKeeper
from oxygen_ros.models.checkpoints import LogProgress
from oxygen_ros.models.interface import VLAModel
from oxygen_ros.msg import Frame
from oxygen_ros.nodes.autostart import Autostart
from oxygen_ros.nodes.clock_watch import ClockWatch
from oxygen_ros.nodes.conversion import observation_from_msg
from oxygen_ros.nodes.inference_diagnostics import InferenceDiagnostics
from oxygen_ros.nodes.inference_outputs import InferenceOutputs
from oxygen_ros.nodes.inference_services import InferenceServices
from oxygen_ros.nodes.inference_status import InferenceStatus
from oxygen_ros.nodes.inference_texts import InferenceTexts
from oxygen_ros.nodes.inference_watchdog import InferenceWatchdog, end_run, end_threads, leave_hanging_threads
from oxygen_ros.nodes.latched_text import LatchedText
from oxygen_ros.nodes.lifecycle_requests import refuse_impossible_transitions
from oxygen_ros.nodes.mailbox import Mailbox
from oxygen_ros.nodes.model_report import report_model
from oxygen_ros.nodes.parameters import declare_parameters
from oxygen_ros.nodes.qos_watch import QosWatch
from oxygen_ros.nodes.runner import add_node_arguments, run_node
from oxygen_ros.nodes.task_timers import TaskTimers
from oxygen_ros.nodes.transitions import do_all, logged
from oxygen_ros.robot.joints import MissingJoint
from oxygen_ros.tasks.parameters import PARAMETERS, memory_keeper, session_settings
from oxygen_ros.tasks.session import Session

PATIENT, QUICK = 5.0, 0.5  # seconds to wait for a thread: while the node lives on, and when the process ends


class InferenceNode(LifecycleNode):
    """
    Lifecycle node around a Session and its Worker. The topics are in the design's table and in README.md.

    :cvar wrap: puts something between engine and model, for tests: a model that fails.
    """

    wrap: Callable[[VLAModel], VLAModel] | None = None

    def __init__(self, **options) -> None:
        super().__init__('inference', **options)
        refuse_impossible_transitions(self)
        self.values = declare_parameters(self, PARAMETERS)
        self.session: Session | None = None
        self.worker: Worker | None = None
        self.memory: MemoryKeeper | None = None
        self._tracer: Tracer | None = None
        self.active = False
        self.forgetting: object | None = None  # while the engine may still act on what was before a jump of the clock
        self.instruction = ''
        self.mailbox = Mailbox(self)
        self.watchdog = InferenceWatchdog(self)
        self.diagnostics = InferenceDiagnostics(self)
        qos = {'qos_overriding_options': QoSOverridingOptions.with_default_policies()}
        self.outputs = InferenceOutputs(self, qos)
        self.create_subscription(Frame, 'frames', self._on_frame, 2, **qos)
        self._instructions = LatchedText(self, 'instruction', self._on_instruction)
        self.qos_watch = QosWatch(self, (self._instructions.latched_subscription,))
        self.texts = InferenceTexts(self)
        self.create_subscription(String, 'utterance', self.texts.utterance, 10, **qos)
        self.service_calls = InferenceServices(self)
        self._status = InferenceStatus(self, qos)
        self.clock_watch = ClockWatch(self, self._on_clock_jump)
        self._task_timers = TaskTimers(self)
        self._autostart = Autostart(self, self.values['autostart'])

    # -- lifecycle ---------------------------------------------------------------------------------------------------

    @logged
    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Load the model, warm it up, open the memory, start the worker."""
        try:
            self._configure()
        except OxygenError as error:
            self._autostart.failed(error)
            self._release()
            return TransitionCallbackReturn.FAILURE
        return super().on_configure(state)

    @logged
    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Start the timers; from now on the robot may be commanded."""
        values = self.values
        latched = self._instructions.last.strip()
        self.instruction = instruction = values['instruction'] if instruction_problem(latched) else latched
        self.session.forget()
        self.session.commands.resume()
        self.diagnostics.begin()
        self.forgetting = None
        self.worker.post(lambda engine: engine.begin(instruction))
        self._task_timers.start()
        self.active = True
        return super().on_activate(state)

    @logged
    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Command nothing any more (position-controlled joints hold), end all texts, keep the model."""
        if not self._make_safe(PATIENT) or self.watchdog.reason:
            return TransitionCallbackReturn.ERROR
        return super().on_deactivate(state)

    @logged
    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        """Free the model and its memory."""
        if self.watchdog.reason:
            return TransitionCallbackReturn.ERROR
        self._release()
        return super().on_cleanup(state)

    @logged
    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        """End from any state."""
        self._release()
        return super().on_shutdown(state)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        """A transition went wrong half way, or the engine failed: free everything; the node can be configured again."""
        self.get_logger().error('error state: the robot holds, the model is freed; the node can be configured again')
        do_all(self, self._release, lambda: super(InferenceNode, self).on_deactivate(state))
        return TransitionCallbackReturn.SUCCESS

    def destroy_node(self) -> None:
        """Make the robot safe, then end all threads; those that do not answer are left behind."""
        do_all(self, lambda: self._release(QUICK), lambda: self.outputs.wait_until_heard(QUICK))
        super().destroy_node()

    def _configure(self) -> None:
        values = self.values
        torch.set_num_threads(values['threads'] or max(1, (os.cpu_count() or 2) // 2))
        self.diagnostics.memory_report = ''
        self.memory = memory_keeper(values, lambda text: self.mailbox.put(
            lambda: self.diagnostics.memory_reported(text)))
        started = time.monotonic()
        try:
            self._tracer = Tracer(values['trace_file'] or None)
        except OSError as error:
            raise OxygenError(f'trace_file {values["trace_file"]!r} cannot be written: {error.strerror}') from error
        self.session = Session(session_settings(values), self.emit, observation_clock=self.now_ns, tracer=self._tracer,
                               progress=LogProgress('loading the weights', self.get_logger().info), wrap=self.wrap)
        status = self.session.engine.status()
        self.watchdog.begin(status.prefill + status.denoise)
        self.worker = Worker(self.session.engine, self.emit)
        self.worker.start()
        spec = self.session.spec
        if values['subtask.rate'] > 0 and not (spec.has_subtasks and spec.text_head_trained):
            raise ConfigError(f'subtask.rate is {values["subtask.rate"]:g}, but model {spec.name} ' + (
                'was never trained to speak' if spec.has_subtasks else 'knows no subtasks') + ': set it to 0')
        report_model(self, time.monotonic() - started)
        self.texts.configured()

    def _release(self, seconds: float | None = None) -> None:
        """
        The one way down: safe robot first, then worker, memory, model. May be called in any state, and again.

        :param seconds: how long to wait for each thread; None takes PATIENT.
        """
        seconds = PATIENT if seconds is None else seconds
        do_all(self, lambda: self._make_safe(seconds), lambda: end_threads(self, seconds), self.mailbox.drain,
               self.texts.released, lambda: self._tracer is not None and self._tracer.close())
        self.session = self.worker = self.memory = self._tracer = None
        self.active = False

    def _make_safe(self, seconds: float) -> bool:
        """Hold the robot, and end everything that is under way; return whether the engine took part in it."""
        self._task_timers.stop()
        if not self.active:
            return True
        try:
            self.outputs.hold()
        finally:  # whatever happens, nothing is commanded any more
            self.active = False
            self.session.commands.clear()
        ended = end_run(self, seconds)
        self.mailbox.drain()  # the last pieces of cancelled texts go out while the publishers still may
        self.texts.fail('the engine has failed')
        return ended

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
        self.diagnostics.state_checked(self.session.action.state_check.problems(
            observation.joint_names, observation.joint_positions, inputs.state))
        self.session.commands.measured(observation.joint_names, observation.joint_positions)
        self.worker.post(lambda engine: engine.observe(inputs))

    def _on_instruction(self, text: str) -> None:
        problem = instruction_problem(text)
        if self.active and not problem:
            self.set_instruction(text)
        elif self.active:
            self.diagnostics.text_ignored('instruction', problem)

    def set_instruction(self, instruction: str) -> None:
        """Set what the robot shall do. In subtask mode that is what the next subtasks lead to."""
        self.instruction = instruction
        self.worker.post(lambda engine: engine.set_instruction(instruction))

    # -- events ------------------------------------------------------------------------------------------------------

    def emit(self, event: Event | WorkerFailed) -> None:
        """Take an event from the worker's thread into this one."""
        self.mailbox.put(lambda: self._handle(event))

    def _handle(self, event: Event | WorkerFailed) -> None:
        if isinstance(event, TextDelta):
            self.texts.arrived(event)
        if not isinstance(event, WorkerFailed):
            self.outputs.publish(event)
            return
        self.watchdog.failed(repr(event.error))

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

    def now_ns(self) -> int:
        """Return the time of the node clock in nanoseconds."""
        return self.get_clock().now().nanoseconds

    def _on_clock_jump(self) -> None:
        if self.session is not None:
            self.session.commands.clear()
            # A chunk under way bears a time that is to come: it would be executed, and all that follow be older.
            jump = self.forgetting = object()

            def forget(engine: Engine) -> None:
                engine.forget_observations()
                self.mailbox.put(forgotten)

            def forgotten() -> None:
                if self.forgetting is jump:
                    self.forgetting = None

            self.worker.post(forget)
            self.mailbox.put(self._restart_timers)  # later: a clock that calls back must not be given new timers

    def _restart_timers(self) -> None:
        """Have the timers fire again: those on system time would wait until it is what it was before."""
        if self.active:
            self._task_timers.stop()
            self._task_timers.start()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `oxygen_ros inference`."""
    add_node_arguments(parser, PARAMETERS)


def main(arguments: argparse.Namespace) -> int:
    """Run the node until it ends; return the exit code."""
    # torch lets go of the interpreter lock in every operation. With Python's default the engine then waits up to 5 ms
    # for it, while the executor runs: on two cores a decode step of tiny took 8 to 10 ms, and 5 to 6 ms with this.
    sys.setswitchinterval(1e-4)
    return leave_hanging_threads(run_node(InferenceNode, arguments))
