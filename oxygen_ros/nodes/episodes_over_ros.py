"""
Evaluation episodes through the real nodes in simulated time: simulator here, perception and inference as processes.

Threads: everything here, the simulator too, runs in the thread that calls `run`.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.signals import SignalHandlerOptions
from trajectory_msgs.msg import JointTrajectory

from oxygen_ros.errors import OxygenError
from oxygen_ros.evaluation.closed_loop import EpisodeResult, Rates
from oxygen_ros.evaluation.smoothness import jerk
from oxygen_ros.msg import MemoryEntry, TextChunk
from oxygen_ros.nodes.conversion import time_from_msg
from oxygen_ros.nodes.simulator import SimulatorNode
from oxygen_ros.processes import ProcessGroup
from oxygen_ros.simulation.dataset import Question
from oxygen_ros.simulation.episode import DURATION, Episode, Judge, score_answer, score_line, score_note
from oxygen_ros.simulation.language import draw_questions
from oxygen_ros.simulation.simulation import Truth
from oxygen_ros.srv import Ask, SetInstruction, Stop
from oxygen_ros.suite import NodeRun, dds_environment, suite_arguments
from oxygen_ros.up import command

START_SECONDS = 300.0  # real ones, until the nodes act
ANSWER_SECONDS = 30.0  # real ones, until a service answers
SETTLE_SECONDS = 0.5  # simulated ones, in which what is from before goes out of the nodes
LAST_SECONDS = 2.0  # simulated ones, in which texts come to their end
KEPT_TRUTHS = 300
MOVED_NS = 20_000_000  # between joint positions that the jerk is computed of, as in `ClosedLoop`
NANOSECONDS = 1_000_000_000


class EpisodesOverRos:
    """
    Runs episodes. Entered as a context manager, which starts the nodes and stops them.

    :param parameters: of the inference node, beside those that the evaluation needs: model, checkpoint, mode, ...
    :param rates: of actions, texts and questions. Those of pictures and control are the nodes' own.
    :param speed: of simulated time; the nodes compute in real time, so this is how quick the machine may be called.
    :raises OxygenError: a node ends, or does not act in time.
    """

    def __init__(self, parameters: dict[str, Any], rates: Rates, speed: float = 1.0) -> None:
        self._parameters, self._rates, self._speed = parameters, rates, speed
        self._group = ProcessGroup()

    def __enter__(self) -> EpisodesOverRos:
        os.environ.update(dds_environment())
        self._folder = tempfile.TemporaryDirectory(prefix='oxygen_ros_evaluation_')
        self._context = rclpy.Context()
        rclpy.init(args=[], context=self._context, signal_handler_options=SignalHandlerOptions.NO)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._node = Node('evaluation', context=self._context)
        self._simulator = SimulatorNode(context=self._context, parameter_overrides=[
            Parameter('simulated_time', value=True), Parameter('speed', value=float(self._speed))])
        self._simulator.on_tick = self._tick
        for node in (self._node, self._simulator):
            self._executor.add_node(node)
        self._open()
        self._group.__enter__()
        try:
            self._start_nodes()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._group.__exit__()
        self._executor.shutdown()
        self._simulator.destroy_node()
        self._node.destroy_node()
        self._context.try_shutdown()
        self._folder.cleanup()

    def run(self, episode: Episode, duration: float = DURATION) -> EpisodeResult:
        """
        Run an episode to its end: the object was pointed at for long enough, or the time is over.

        :param duration: simulated seconds.
        """
        simulator = self._simulator
        self._result, self._judge = EpisodeResult(episode), None
        self._call(self._stop, Stop.Request(reason='the next episode', cancel_text=True))
        for _ in range(2):  # a command that was still under way may have moved the robot the first time
            episode.begin(simulator.simulation)
            simulator.was_reset()
            self._pass(SETTLE_SECONDS)
        self._moved: list[np.ndarray] = []
        self._asked = 0  # questions of this episode
        self._random = np.random.default_rng([episode.seed, 3])
        self._call(self._instruct, SetInstruction.Request(instruction=episode.instruction, resume=True))
        self._judge, self._since_ns, self._until_ns = Judge(episode), simulator.now_ns, None
        self._pass(duration, lambda: self._judge.reached)
        result, self._until_ns = self._result, simulator.now_ns
        result.outcome, result.distance = self._judge.outcome, self._judge.distance
        result.seconds = (self._until_ns - self._since_ns) / NANOSECONDS
        result.jerk = jerk(np.array(self._moved), MOVED_NS / NANOSECONDS)
        if self._rates.speech or self._rates.memory or self._rates.question:
            self._pass(LAST_SECONDS)
        return result

    # -- nodes -------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        node = self._node
        self._result: EpisodeResult | None = None
        self._judge: Judge | None = None
        self._truths: dict[int, Truth] = {}
        self._texts: dict[int, str] = {}
        self._chunks = 0
        node.create_subscription(JointTrajectory, 'joint_trajectory', self._on_trajectory, 50)
        node.create_subscription(TextChunk, 'speech', self._on_text, 100)
        node.create_subscription(MemoryEntry, 'memory', self._on_note, 50)
        self._instruct = node.create_client(SetInstruction, 'set_instruction')
        self._stop = node.create_client(Stop, 'stop')
        self._ask = node.create_client(Ask, 'ask')

    def _start_nodes(self) -> None:
        rates, common = self._rates, {'robot': 'openarm', 'use_sim_time': True}
        texts = {f'{task}.{name}': value for task in ('speech', 'memory') for name, value in (
            ('rate', getattr(rates, task)), ('temperature', 0.0), ('max_tokens', 48))}
        runs = (
            NodeRun('perception', {**common, 'image_height': 0, 'image_width': 0}),
            NodeRun('inference', {**common, 'autostart': True, 'action.rate': rates.action, **texts,
                                  'answer.temperature': 0.0, 'memory.path': str(Path(self._folder.name) / 'memory.db'),
                                  **self._parameters}))
        values = {argument.name: argument.default or '' for argument in suite_arguments()} | {'log_level': 'warn'}
        environment = {**os.environ, **dds_environment()}
        for run in runs:
            with open(self._log(run.name), 'wb') as log:
                self._group.start(run.name, command(run, values), env=environment, stdout=log, stderr=log)
        self._simulator.start()
        if not self._spin(lambda: self._chunks > 1 and self._ask.service_is_ready(), START_SECONDS):
            raise OxygenError(f'no actions within {START_SECONDS:.0f} s: {self._last_line("inference")}')

    def _log(self, name: str) -> Path:
        return Path(self._folder.name) / f'{name}.log'

    def _last_line(self, name: str) -> str:
        lines = self._log(name).read_text(errors='replace').split('\n')
        return next((line for line in reversed(lines) if line.strip()), 'it printed nothing')

    def _spin(self, condition: Callable[[], bool], seconds: float = float('inf')) -> bool:
        """Let everything go on until a condition holds; returns whether it does after so many real seconds."""
        end = time.monotonic() + seconds
        while not condition():
            if self._group.stop_requested:
                raise KeyboardInterrupt
            if self._group.ended:
                name = self._group.ended[0].name
                raise OxygenError(f'node {name} ended: {self._last_line(name)}')
            if time.monotonic() > end:
                return False
            self._executor.spin_once(timeout_sec=0.05)
        return True

    def _pass(self, seconds: float, condition: Callable[[], bool] = lambda: False) -> None:
        """Let simulated time pass, or less if a condition holds."""
        end_ns = self._simulator.now_ns + round(seconds * NANOSECONDS)
        self._spin(lambda: condition() or self._simulator.now_ns >= end_ns)

    def _call(self, client: Any, request: Any) -> None:
        future = client.call_async(request)
        if not self._spin(future.done, ANSWER_SECONDS):
            raise OxygenError(f'service {client.srv_name} did not answer within {ANSWER_SECONDS:.0f} s')

    # -- what happens ------------------------------------------------------------------------------------------------

    def _tick(self, stamp_ns: int, pictures: bool) -> None:
        simulation = self._simulator.simulation
        if pictures:
            self._truths[stamp_ns] = truth = simulation.truth()
            while len(self._truths) > KEPT_TRUTHS:
                self._truths.pop(next(iter(self._truths)))
        else:
            truth = simulation.truth(seen=False)
        if self._judge is None or self._until_ns is not None:
            return
        self._judge.watch(truth, stamp_ns / NANOSECONDS)
        if stamp_ns % MOVED_NS == 0:
            self._moved.append(truth.joints)
        if self._rates.question and pictures:
            passed = (stamp_ns - self._since_ns) / NANOSECONDS * self._rates.question
            if passed >= self._asked:
                self._asked += 1
                self._put(draw_questions(self._random, truth.objects, 1)[0])

    def _put(self, question: Question) -> None:
        """Ask a question; its answer is scored if it is about a moment of this episode at which it is right still."""
        result, seen = self._result, _seen(next(reversed(self._truths.values())))
        future = self._ask.call_async(Ask.Request(question=question.question, wait=True, without_memory=True))

        def answered(_: Any) -> None:
            response = future.result()
            truth = self._truth(response.frame_stamp)
            if (response.accepted and response.finish_reason == TextChunk.STOP and truth is not None
                    and question.clear and _seen(truth) == seen):
                result.answers.append((question.kind, score_answer(question, response.answer)))

        future.add_done_callback(answered)

    def _truth(self, stamp: Any) -> Truth | None:
        """Return what was so at the stamp of a frame, if that is of this episode."""
        stamp_ns = time_from_msg(stamp)
        if self._judge is None or stamp_ns < self._since_ns or stamp_ns > (self._until_ns or stamp_ns):
            return None
        return self._truths.get(stamp_ns)

    def _on_trajectory(self, _: JointTrajectory) -> None:
        self._chunks += 1
        if self._judge is not None and self._until_ns is None:
            self._result.chunks += 1

    def _on_text(self, message: TextChunk) -> None:
        text = self._texts.pop(message.request_id, '') + message.delta
        if message.finish_reason == TextChunk.NOT_FINISHED:
            self._texts[message.request_id] = text
            return
        truth = self._truth(message.header.stamp)
        if message.task != 'speech' or message.finish_reason != TextChunk.STOP or truth is None:
            return
        right = score_line(text, self._result.episode.instruction, [truth])
        if right is not None:
            self._result.lines.append(right)

    def _on_note(self, message: MemoryEntry) -> None:
        if (truth := self._truth(message.header.stamp)) is not None:
            self._result.notes.append(score_note(message.text, truth.objects))


def _seen(truth: Truth) -> list[tuple[str, bool, bool]]:
    return [(item.name, item.seen, item.hidden) for item in truth.objects]
