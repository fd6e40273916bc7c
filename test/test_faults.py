"""
Faults on purpose, on a real inference node. After each: no command was outside the limits, nothing stored was lost, and
the node goes on or says why not.
"""

import subprocess
import sys
import threading
import time

import numpy as np
import psutil
import pytest
import yaml
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from lifecycle_msgs.msg import State
from sensor_msgs.msg import JointState
from small_policy import SIZES, small_config
from trajectory_msgs.msg import JointTrajectory

from oxygen_ros.msg import EngineStatus, Frame, TextChunk
from oxygen_ros.nodes.conversion import frame_to_msg, time_from_msg
from oxygen_ros.nodes.inference import InferenceNode
from oxygen_ros.nodes.inference_services import CALLS
from oxygen_ros.observation import Observation
from oxygen_ros.robot.robot_file import load_robot
from oxygen_ros.soak.command_check import CommandCheck
from oxygen_ros.soak.faults import FaultyModel, ModelFault
from oxygen_ros.srv import Ask

ROBOT = load_robot('unitree_g1')
ENDS = (TextChunk.ERROR, TextChunk.LENGTH, TextChunk.STOP, TextChunk.DROPPED)
UNCONFIGURED, ACTIVE = State.PRIMARY_STATE_UNCONFIGURED, State.PRIMARY_STATE_ACTIVE


class FaultyNode(InferenceNode):
    def wrap(self, model):
        self.faulty = FaultyModel(model)
        return self.faulty


class Life:
    """An inference node on a small model that can be made to fail, its frames, and what it says."""

    def __init__(self, graph, folder, **parameters):
        model = folder / 'small.yaml'
        model.write_text(yaml.safe_dump(small_config(**{**SIZES, 'action_dim': 32, 'prompt_tokens': 60})))
        self.graph, self.number, self.see, self.feel = graph, 0, True, True
        self.node = graph.add(FaultyNode, **{
            'model': str(model), 'memory.path': str(folder / 'memory.db'), 'speech.rate': 0.0, 'memory.rate': 0.0,
            'action.rate': 10.0, 'text_repetitions': 0, 'branch_tokens': 200, 'answer.max_tokens': 4,
            'command.start_time': 0.0, 'action.failures': 3, 'engine_timeout': 0.5, 'allow_random_weights': True,
            'max_frame_age': 2.0, **parameters})
        self.check = CommandCheck(ROBOT)
        self.commands, self.trajectories = [], graph.listen(JointTrajectory, 'joint_trajectory', 100)
        graph.node.create_subscription(JointState, 'joint_commands', self._command, 100)
        self.speech = graph.listen(TextChunk, 'speech', 1000)
        self.diagnostics = graph.listen(DiagnosticArray, '/diagnostics', 100)
        self.frames = graph.node.create_publisher(Frame, 'frames', 2)
        graph.node.create_timer(0.1, self._frame)
        self.ask_client = graph.node.create_client(Ask, 'ask')

    def _command(self, message):
        self.commands.append(message)
        self.check.take(message.name, message.position, time_from_msg(message.header.stamp))

    def _frame(self):
        if self.see:
            self.number += 1
            now = self.graph.node.get_clock().now().nanoseconds
            joints = ROBOT.joints if self.feel else ()
            self.frames.publish(frame_to_msg(Observation(
                self.number, now, {'head': np.full((28, 28, 3), self.number % 256, np.uint8)},
                tuple(joint.name for joint in joints), np.array([joint.default for joint in joints]))))

    def start(self):
        self.node.trigger_configure()
        self.node.trigger_activate()
        assert self.state == ACTIVE
        self.check.begin()
        self.acts()
        return self

    @property
    def state(self):
        return self.node._state_machine.current_state[0]

    @property
    def model(self):
        return self.node.faulty

    def acts(self):
        """Wait until new chunks are executed, and check all commands until now."""
        before, commands = len(self.trajectories), self.check.commands
        assert self.graph.spin_until(lambda: len(self.trajectories) >= before + 3 and self.check.commands > commands), (
            self.said())
        self.fine()

    def fine(self):
        assert self.check.commands and not self.check.problems, self.check.problems

    def ask(self, question='what?', **fields):
        assert self.graph.spin_until(self.ask_client.service_is_ready)
        return self.ask_client.call_async(Ask.Request(question=question, temperature=-1.0, **fields))

    def result(self, future):
        assert self.graph.spin_until(future.done)
        return future.result()

    def said(self):
        return {status.name.split(': ')[1]: (status.level, status.message)
                for array in self.diagnostics for status in array.status}

    def level(self, part):
        return self.said().get(part, (None, ''))[0]

    def in_error_state(self):
        """Wait for the way through the error state; the robot was made to hold first, and it is told why."""
        assert self.graph.spin_until(lambda: self.state == UNCONFIGURED)
        assert self.node.worker is None and not self.node.active
        # The last words to the robot were to hold: one point at rest.
        assert self.graph.spin_until(lambda: len(self.trajectories[-1].points) == 1)
        assert not any(self.trajectories[-1].points[0].velocities)
        assert self.graph.spin_until(lambda: self.level('state') == DiagnosticStatus.ERROR)
        commands = len(self.commands)
        self.graph.spin_for(0.3)
        assert len(self.commands) == commands
        self.fine()


@pytest.fixture
def life(ros_graph, tmp_path):
    life = Life(ros_graph, tmp_path)
    yield life
    if hasattr(life.node, 'faulty'):
        life.node.faulty.release()


@pytest.mark.parametrize('fault', [ModelFault.RAISES, ModelFault.OUT_OF_MEMORY, ModelFault.NAN])
@pytest.mark.parametrize('stage', ['prefill', 'denoise'])
def test_actions_that_fail_now_and_then_are_left_out(life, stage, fault):
    life.start()
    worker, statuses = life.node.worker, life.graph.listen(EngineStatus, 'status')
    life.model.inject(stage, fault, 3)
    assert life.graph.spin_until(lambda: not life.model.waiting)
    life.acts()
    assert life.node.worker is worker and life.state == ACTIVE
    assert life.graph.spin_until(lambda: any(status.action_failures >= 3 for status in statuses))
    worker.call(lambda engine: engine.check_integrity()).result(10)


@pytest.mark.parametrize('fault', [ModelFault.RAISES, ModelFault.NAN])
def test_actions_that_fail_again_and_again_lead_to_the_error_state_and_back(life, fault):
    life.start()
    life.model.inject('denoise', fault, 100)
    life.in_error_state()
    life.start()


def test_thread_that_dies_makes_the_robot_safe_and_the_node_can_begin_anew(life):
    life.start()
    waits = life.ask(max_tokens=150, wait=True, timeout=60.0)
    assert life.graph.spin_until(lambda: life.speech)  # or it would come too late, and be refused
    life.model.inject('denoise', ModelFault.DIES)
    life.in_error_state()
    assert life.result(waits).finish_reason in ENDS  # it may have been quick
    life.start()


def test_call_that_does_not_return_makes_the_robot_safe_and_the_node_can_begin_anew(life):
    life.start()
    threads = threading.active_count()
    waits = life.ask(max_tokens=150, wait=True, timeout=60.0)
    assert life.graph.spin_until(lambda: life.speech)
    life.model.inject('denoise', ModelFault.HANGS)
    life.in_error_state()
    assert life.result(waits).finish_reason in ENDS
    assert 'no cycle ended' in life.said()['state'][1]
    hanging = life.model
    life.start()  # a new thread and a new model; the old one is left behind
    hanging.release()
    assert life.graph.spin_until(lambda: threading.active_count() <= threads)
    life.acts()


def test_deactivation_while_a_call_hangs_leads_through_the_error_state(life, monkeypatch):
    monkeypatch.setattr('oxygen_ros.nodes.inference.PATIENT', 0.3)
    life.node.values['engine_timeout'] = 3600.0
    life.start()
    life.model.inject('denoise', ModelFault.HANGS)
    assert life.graph.spin_until(lambda: life.model.happened)
    life.node.trigger_deactivate()
    assert life.state == UNCONFIGURED and life.node.worker is None
    life.model.release()
    life.start()


@pytest.mark.parametrize('fault', [ModelFault.RAISES, ModelFault.NAN])
def test_text_that_fails_ends_alone(life, fault):
    life.start()
    long = life.ask('one', max_tokens=100, wait=True, timeout=60.0)
    assert life.graph.spin_until(lambda: any(piece.request_id == 1 for piece in life.speech))
    life.model.inject('extend', fault)  # one step of the batch, or a prompt
    second = life.ask('two', wait=True, timeout=60.0)
    answers = [life.result(long), life.result(second)]
    ends = [answer.finish_reason for answer in answers]
    assert all(answer.accepted for answer in answers)
    if fault is ModelFault.RAISES:  # a batch is tried again one by one, and a single text ends
        assert ends.count(TextChunk.ERROR) <= 1
    assert life.result(life.ask('three', wait=True, timeout=60.0)).finish_reason in (TextChunk.LENGTH, TextChunk.STOP)
    life.acts()


def test_more_calls_at_once_than_a_usual_service_holds_are_all_answered(life):
    life.start()
    client = life.graph.node.create_client(Ask, 'ask', qos_profile=CALLS)
    assert life.graph.spin_until(client.service_is_ready)
    life.graph.spin_for(0.3)
    calls = [client.call_async(Ask.Request(question='what?', wait=True, temperature=-1.0, timeout=20.0))
             for _ in range(40)]
    time.sleep(0.3)  # nobody spins: all come while the executor is busy
    assert life.graph.spin_until(lambda: all(call.done() for call in calls))


def test_frames_that_stop_end_the_motion_and_their_return_begins_it(life):
    life.start()
    life.see = False
    assert life.graph.spin_until(lambda: life.node.diagnostics._source is not None
                                 and life.node.diagnostics._source.name == 'HOLD')
    assert life.graph.spin_until(lambda: life.level('frames') == DiagnosticStatus.ERROR)
    life.fine()
    life.see = True
    life.acts()
    assert life.graph.spin_until(lambda: life.level('frames') == DiagnosticStatus.OK)


def test_joint_states_that_stop_end_the_motion_and_are_named(life):
    life.start()
    life.feel = False
    assert life.graph.spin_until(lambda: life.level('frames') == DiagnosticStatus.ERROR)
    assert 'joint' in life.said()['frames'][1]
    life.graph.spin_for(2.5)  # until the last good frame is too old
    chunks = len(life.trajectories)
    life.graph.spin_for(0.5)
    assert len(life.trajectories) == chunks
    life.feel = True
    life.acts()


def test_clock_that_jumps_back_drops_what_was_before_and_goes_on(life):
    life.start()
    for _ in range(3):
        life.node.clock_watch._note_jump(-5.0)
        assert not life.node.session.commands._buffer.commanding
        life.check.begin()
        life.acts()


PEER = '''
import sys, time
import numpy as np
import rclpy
from oxygen_ros.msg import Frame
from oxygen_ros.nodes.conversion import frame_to_msg
from oxygen_ros.observation import Observation
from oxygen_ros.robot.robot_file import load_robot

rclpy.init()
node = rclpy.create_node('peer')
frames, robot = node.create_publisher(Frame, 'frames', 2), load_robot('unitree_g1')
pose = np.array([joint.default for joint in robot.joints])
for number in range(1, 10000):
    frames.publish(frame_to_msg(Observation(number, node.get_clock().now().nanoseconds,
                                            {'head': np.zeros((28, 28, 3), np.uint8)}, robot.joint_names, pose)))
    time.sleep(0.05)
'''


def test_peer_that_is_killed_and_comes_again_is_no_matter(life):
    life.see = False
    for _ in range(2):
        peer = subprocess.Popen([sys.executable, '-c', PEER])
        life.graph._processes.append(peer)
        if life.state != ACTIVE:
            life.start()
        life.acts()
        peer.kill()
        peer.wait()
        assert life.graph.spin_until(lambda: life.level('frames') == DiagnosticStatus.ERROR)
        life.fine()
        life.diagnostics.clear()


def test_full_disk_loses_no_note_that_was_stored_and_stops_nothing(life):
    life.start()
    kept = life.node.memory.add('kept', 1, 1).result(10)
    connection = life.node.memory._store._connection
    connection.execute(f'PRAGMA max_page_count = {connection.execute("PRAGMA page_count").fetchone()[0]}')
    full = life.node.memory.add('x' * 100_000, 2, 2)
    assert 'full' in str(full.exception(10))
    life.acts()
    connection.execute('PRAGMA max_page_count = 1000000')
    assert life.node.memory.add('room again', 3, 3).result(10).text == 'room again'
    life.node.trigger_deactivate()
    life.node.trigger_cleanup()
    life.start()
    assert kept.text in [entry.text for entry in life.node.memory.query('', None, None, 10).result(10)]


def test_any_order_of_transitions_many_times_leaves_nothing_behind(life):
    """Threads, file handles and memory are those of the beginning."""
    life.node.values['action.rate'] = 100.0
    generator, process = np.random.default_rng(1), psutil.Process()

    def wander(times):
        for _ in range(times):
            name = generator.choice(['configure', 'activate', 'activate', 'deactivate', 'cleanup', 'error'])
            if name == 'error':
                if life.node.worker is not None:
                    life.node.watchdog.failed('a fault of the test')
            else:
                try:
                    getattr(life.node, f'trigger_{name}')()
                except Exception as error:  # RCLError: not in this state
                    assert 'transition' in str(error).lower() or 'state' in str(error).lower(), error
            life.graph.spin_for(0.005)

    def settled():
        life.graph.spin_for(0.2)
        if life.state == ACTIVE:
            life.node.trigger_deactivate()
        if life.state == State.PRIMARY_STATE_INACTIVE:
            life.node.trigger_cleanup()
        return process.num_threads(), process.num_fds(), process.memory_info().rss

    wander(20)
    threads, handles, size = settled()
    wander(100)
    settled()
    assert life.graph.spin_until(lambda: process.num_threads() <= threads and process.num_fds() <= handles, 5), (
        (threads, handles), settled())
    grown = process.memory_info().rss - size
    assert grown < 40e6, f'{grown / 1e6:.1f} MB more'
    life.start()


def test_wrong_commands_are_found():
    check, joint = CommandCheck(ROBOT), ROBOT.joints[0]
    check.take([joint.name], [joint.upper], 0)
    check.take([joint.name], [joint.upper - joint.velocity * 0.01], 10_000_000)
    assert not check.problems
    for wrong, stamp in ((joint.upper + 0.1, 5_000_000_000), (float('nan'), 6_000_000_000)):
        check.take([joint.name], [wrong], stamp)
    check.take([joint.name], [joint.lower], 9_000_000_000)
    check.take([joint.name], [joint.upper], 9_010_000_000)
    assert ['outside' in text for text in check.problems] == [True, False, False]
    assert 'its speed is' in check.problems[-1]


def test_time_of_a_call_is_told_while_it_runs(life):
    life.start()
    life.node.values['engine_timeout'] = 3600.0
    life.model.inject('denoise', ModelFault.HANGS)
    assert life.graph.spin_until(lambda: life.model.happened)
    time.sleep(0.05)
    assert life.node.worker.silence > 0.04
    life.model.release()
    life.acts()
