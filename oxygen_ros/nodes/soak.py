"""
`oxygen_ros soak`: the whole suite with faults at random; says what happened, and what did not stay true.

The inference node runs in a thread of this process, so that its model can be made to fail; perception is a process that
can be killed. All topics are in a namespace of their own: no real robot hears them.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import json
import os
import random
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rclpy
from lifecycle_msgs.msg import State
from rclpy.executors import SingleThreadedExecutor
from rclpy.parameter import Parameter

from oxygen_ros.models.interface import VLAModel
from oxygen_ros.nodes.inference import InferenceNode
from oxygen_ros.nodes.soak_faults import FAULTS
from oxygen_ros.nodes.soak_robot import SoakRobot
from oxygen_ros.processes import ProcessGroup
from oxygen_ros.robot.robot_file import load_robot
from oxygen_ros.soak.faults import FaultyModel
from oxygen_ros.soak.report import Footprint, SoakReport

NAMESPACE = 'oxygen_ros_soak'
RECOVER_SECONDS = 60.0
QUESTIONS = ('what do you see?', 'where is the cup?', 'is somebody there?', 'what shall I do now?')


class SoakInference(InferenceNode):
    """An inference node with a model that fails when it is told to."""

    faulty: FaultyModel | None = None

    def wrap(self, model: VLAModel) -> VLAModel:
        """Put faults between engine and model."""
        self.faulty = FaultyModel(model)
        return self.faulty


class Soak:
    """
    One run.

    :param folder: for the database of the memory.
    :ivar node, robot, perception, random: what FAULTS work on.
    """

    def __init__(self, arguments: argparse.Namespace, folder: Path, group: ProcessGroup) -> None:
        self._arguments, self._group, self._folder = arguments, group, folder
        self.random = random.Random(arguments.seed)
        self.report = SoakReport(arguments.seed, arguments.model)
        self._context = rclpy.Context()
        rclpy.init(context=self._context, args=['--ros-args', '--log-level', 'fatal'])
        self._robot_file = load_robot(arguments.robot)
        self.robot = SoakRobot(self._robot_file, arguments.seed, context=self._context, namespace=NAMESPACE)
        parameters = {
            'model': arguments.model, 'robot': arguments.robot, 'memory.path': str(folder / 'memory.db'),
            'allow_random_weights': True, 'engine_timeout': 3.0, 'action.failures': 5, 'memory.rate': 1.0,
            'memory.max_entries': 1_000_000, 'seed': arguments.seed}
        self.node = SoakInference(context=self._context, namespace=NAMESPACE, parameter_overrides=[
            Parameter(name, value=value) for name, value in parameters.items()])
        self._ending = threading.Event()
        self._threads = [threading.Thread(target=self._spin, args=(node,), daemon=True)
                         for node in (self.node, self.robot)]
        self._executors: dict[str, SingleThreadedExecutor] = {}
        self._perceptions = 0
        self.perception: subprocess.Popen | None = None

    def run(self) -> SoakReport:
        """Run until the time is over."""
        for thread in self._threads:
            thread.start()
        self._start_perception()
        self._up()
        self._recovered('start', 2 * RECOVER_SECONDS)
        self._down()
        self.report.begin = self._footprint()
        self._up()
        self._recovered('start', 2 * RECOVER_SECONDS)
        started = time.monotonic()
        while time.monotonic() - started < self._arguments.minutes * 60 and not self._group.stop_requested:
            self._recovered('nothing', RECOVER_SECONDS)
            self._live(self.random.uniform(1.0, 3.0))
            name = self.random.choice(sorted(FAULTS))
            self.report.faults[name] += 1
            if self._arguments.verbose:
                print(f'{time.monotonic() - started:7.1f} s {name}', file=sys.stderr, flush=True)
            with FAULTS[name](self):
                self._live(self.random.uniform(0.5, 3.0))
            self.node.faulty.release()
            self._recovered(name, RECOVER_SECONDS)
        self.wait(lambda: not self.robot.open, RECOVER_SECONDS)
        if self.robot.open:
            self.report.broken.append(f'{len(self.robot.open)} questions were never answered')
        self._down()
        self.report.end = self._footprint()
        self.report.seconds = time.monotonic() - started
        self._sum_up()
        return self.report

    def close(self) -> None:
        """End the threads and nodes."""
        if self.node.faulty is not None:
            self.node.faulty.release()
        self._ending.set()
        for thread in self._threads:
            if thread.ident is not None:  # it was started
                thread.join(5)
        self.node.destroy_node()
        self.robot.destroy_node()
        self._context.try_shutdown()

    # -- life --------------------------------------------------------------------------------------------------------

    def _spin(self, node: InferenceNode | SoakRobot) -> None:
        executor = SingleThreadedExecutor(context=self._context)
        executor.add_node(node)
        self._executors[node.get_name()] = executor
        try:
            while not self._ending.is_set():
                executor.spin_once(timeout_sec=0.1)
        except Exception as error:  # noqa: B902 - that would have ended the process of a node
            self.report.broken.append(f'a callback of {node.get_name()} raised {error!r}')

    def in_node(self, work: Callable[[], Any]) -> Any:
        """Have something done in the thread of the inference node."""
        self.wait(lambda: 'inference' in self._executors, 10)
        task = self._executors['inference'].create_task(work)
        if not self.wait(task.done, RECOVER_SECONDS):
            self.report.broken.append('the inference node did not answer')
            return None
        return task.result()

    def state(self) -> int:
        """Return the lifecycle state of the inference node."""
        return self.node._state_machine.current_state[0]

    def _up(self) -> None:
        def up() -> None:
            if self.state() == State.PRIMARY_STATE_UNCONFIGURED:
                self.node.trigger_configure()
            if self.state() == State.PRIMARY_STATE_INACTIVE:
                self.node.trigger_activate()
        self.in_node(up)

    def _down(self) -> None:
        self.in_node(self.deactivate)
        self.in_node(self.clean_up)

    def deactivate(self) -> None:
        """In the node's thread: deactivate it, if it is active."""
        if self.state() == State.PRIMARY_STATE_ACTIVE:
            self.node.trigger_deactivate()

    def clean_up(self) -> None:
        """In the node's thread: free its model."""
        self.deactivate()
        if self.state() == State.PRIMARY_STATE_INACTIVE:
            self.node.trigger_cleanup()

    def _live(self, seconds: float) -> None:
        """Ask and speak for a while."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._group.stop_requested:
            if self.random.random() < 0.3:
                self.robot.ask(self.random.choice(QUESTIONS))
            if self.random.random() < 0.1:
                self.robot.say(self.random.choice(QUESTIONS))
            time.sleep(0.1)

    def _recovered(self, name: str, seconds: float) -> None:
        """Bring everything up again, as a supervisor would, and wait until the robot acts."""
        begun, chunks = time.monotonic(), self.robot.chunks
        if self.state() == State.PRIMARY_STATE_UNCONFIGURED and name not in ('start', 'nothing'):
            self.report.error_states += 1
        self._start_perception()

        def acts() -> bool:
            if self.state() in (State.PRIMARY_STATE_UNCONFIGURED, State.PRIMARY_STATE_INACTIVE):
                self._up()
            return self.robot.chunks >= chunks + 2

        if not self.wait(acts, seconds) and not self._group.stop_requested:
            self.report.broken.append(f'no action within {seconds:.0f} s after {name}')
        elif name not in ('start', 'nothing'):
            self.report.recoveries[name].append(time.monotonic() - begun)
        worker = self.node.worker
        if worker is not None:
            try:
                worker.call(lambda engine: engine.check_integrity()).result(10)
            except Exception as error:  # noqa: B902 - CacheIntegrityError, or no answer
                self.report.broken.append(f'after {name} the cache: {error!r}')

    def wait(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait for a condition; return whether it holds."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._group.stop_requested:
            if condition():
                return True
            time.sleep(0.05)
        return condition()

    def _start_perception(self) -> None:
        if self.perception is not None and self.perception.poll() is None:
            return
        topics = self.robot.topics()
        words = [sys.executable, '-m', 'oxygen_ros', 'perception', '--namespace', NAMESPACE, '--log-level', 'fatal']
        for setting in (f'robot:={self._arguments.robot}', f'cameras:=[{", ".join(topics)}]',
                        f'camera_topics:=[{", ".join(topics.values())}]', 'joint_states:=joint_states'):
            words += ['-p', setting]
        self._perceptions += 1
        self.perception = self._group.start(f'perception {self._perceptions}', words,
                                            env={**os.environ, 'OMP_NUM_THREADS': '1'}, stderr=subprocess.DEVNULL)

    # -- end ---------------------------------------------------------------------------------------------------------

    def _footprint(self) -> Footprint:
        time.sleep(1.0)  # threads that were left behind end
        gc.collect()
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        return Footprint.now()

    def _sum_up(self) -> None:
        report, robot = self.report, self.robot
        report.frames, report.chunks, report.commands = robot.frames, robot.chunks, robot.check.commands
        report.asked, report.answers, report.drops = robot.asked, robot.answers, robot.drops
        report.notes = len(robot.notes)
        report.broken += [f'command: {problem}' for problem in robot.check.problems]
        database = sqlite3.connect(self._folder / 'memory.db')
        stored = {row[0] for row in database.execute('SELECT id FROM notes')}
        database.close()
        if lost := robot.notes - stored:
            report.broken.append(f'{len(lost)} of {len(robot.notes)} notes are lost')
        if not report.commands:
            report.broken.append('no command was published')
        report.compare()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `oxygen_ros soak`."""
    parser.add_argument('--minutes', type=float, default=1.0, help='how long (default: 1)')
    parser.add_argument('--seed', type=int, default=0, help='equal seeds give the same faults in the same order')
    parser.add_argument('--model', default='tiny', help='model, by name or as a path to a .yaml file')
    parser.add_argument('--robot', default='unitree_g1', help='robot, by name or as a path to a .yaml file')
    parser.add_argument('--output', metavar='FILE', help='write the report there too')
    parser.add_argument('--verbose', action='store_true', help='name each fault when it comes')


def main(arguments: argparse.Namespace) -> int:
    """Run, print the report as JSON; return 1 if something did not stay true."""
    os.environ.setdefault('ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST')
    sys.setswitchinterval(1e-4)
    with tempfile.TemporaryDirectory() as folder, ProcessGroup() as group:
        soak = Soak(arguments, Path(folder), group)
        try:
            report = soak.run()
        finally:
            soak.close()
    text = json.dumps(report.as_json(), indent=2)
    print(text)
    if arguments.output:
        Path(arguments.output).write_text(text + '\n')
    return 1 if report.broken else 0
