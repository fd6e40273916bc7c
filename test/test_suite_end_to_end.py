"""The whole suite as real processes over DDS: a recording in; commands, text and memory out."""

from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticArray
from lifecycle_msgs.msg import State, Transition
from lifecycle_msgs.srv import ChangeState, GetState
from sensor_msgs.msg import JointState
from std_msgs.msg import String
from trajectory_msgs.msg import JointTrajectory

from oxygen_ros.msg import EngineStatus, Frame, MemoryEntry, TextChunk
from oxygen_ros.nodes.conversion import time_from_msg
from oxygen_ros.robot.robot_file import load_robot
from oxygen_ros.srv import Ask, Cancel, QueryMemory, SetInstruction, Stop

BAG = Path(__file__).parent / 'data' / 'bags' / 'g1_two_cameras'
ROBOT = load_robot('unitree_g1')
ARMS = ROBOT.layout('joints').actions
START_SECONDS = 120  # that three processes may take to begin on a machine that is busy otherwise


class Suite:
    """Replay, perception and inference as processes, and everything that they publish."""

    def __init__(self, graph, folder, *parameters):
        self.graph = graph
        self.clients = {}
        self.frames = graph.listen(Frame, 'frames')
        self.trajectories = graph.listen(JointTrajectory, 'joint_trajectory')
        self.commands = graph.listen(JointState, 'joint_commands', 100)
        self.speech = graph.listen(TextChunk, 'speech', 1000)
        self.sentences = graph.listen(String, 'speech/sentences', 100)
        self.memory = graph.listen(MemoryEntry, 'memory')
        self.status = graph.listen(EngineStatus, 'status')
        self.diagnostics = graph.listen(DiagnosticArray, '/diagnostics')
        settings = ('autostart:=true', 'allow_random_weights:=true', f'memory.path:={folder}/memory.db',
                    'memory.rate:=2.0', *parameters)
        words = [word for setting in settings for word in ('-p', setting)]
        self.inference = graph.start('inference', *words)
        self.perception = graph.start('perception', '-p', 'robot:=unitree_g1', '-p', 'image_height:=112', '-p',
                                      'image_width:=112')
        self.replay = graph.start('replay', str(BAG), '--loop', '--restamp', '--topics', '/joint_states',
                                  '/camera/head/image_raw/compressed', '/camera/front/image_raw/compressed')

    def call(self, service_type, name, **fields):
        if name not in self.clients:
            self.clients[name] = self.graph.node.create_client(service_type, name)
            assert self.graph.spin_until(self.clients[name].service_is_ready, START_SECONDS), name
        # Right after discovery DDS may lose an answer, since the service does not know our reader yet: ask again.
        for _ in range(3):
            future = self.clients[name].call_async(service_type.Request(**fields))
            if self.graph.spin_until(future.done, 40):  # a model is loaded meanwhile
                return future.result()
        pytest.fail(f'{name} does not answer; heard {len(self.diagnostics)} diagnostics, {len(self.frames)} frames, '
                    f'nodes {self.graph.node.get_node_names()}, inference {self.inference.poll()}')

    def wait(self, condition, what, seconds=START_SECONDS):
        if not self.graph.spin_until(condition, seconds):
            processes = [f'{process.args[3]} {process.poll()}' for process in
                         (self.inference, self.perception, self.replay)]
            said = {status.name: status.message for array in self.diagnostics for status in array.status}
            pytest.fail(f'no {what}; frames {len(self.frames)}, status {len(self.status)}, {processes}, {said}')

    def settle(self):
        """Wait until nothing that moves the robot comes any more: a busy machine hands out late what was under way."""
        for _ in range(30):
            before = len(self.trajectories), len(self.commands)
            self.graph.spin_for(0.5)
            if (len(self.trajectories), len(self.commands)) == before:
                return
        pytest.fail('commands go on and on')

    def stop(self):
        for process in (self.replay, self.perception, self.inference):
            self.graph.stop(process)


@pytest.fixture
def suite(ros_graph, tmp_path):
    return Suite(ros_graph, tmp_path)


def texts(pieces):
    """Return request id -> its pieces in order of arrival."""
    result = defaultdict(list)
    for piece in pieces:
        result[piece.request_id].append(piece)
    return result


def stamp_ns(message):
    return time_from_msg(message.header.stamp)


def assert_within_limits(names, positions, velocities):
    joints = {joint.name: joint for joint in ROBOT.joints}
    for name, position, velocity in zip(names, positions, velocities, strict=True):
        joint = joints[name]
        assert joint.lower <= position <= joint.upper, name
        assert abs(velocity) <= joint.velocity + 1e-9, name


def test_suite_acts_speaks_and_remembers_at_once(suite):
    suite.wait(lambda: len(suite.trajectories) >= 3, 'trajectories')
    suite.wait(lambda: len(suite.memory) >= 2, 'memory entries')
    suite.wait(lambda: any(piece.finish_reason for piece in suite.speech if piece.task == 'speech'), 'spoken line')

    # A question is answered while actions go on.
    before = len(suite.trajectories)
    answer = suite.call(Ask, 'ask', question='what do you see?', wait=True, max_tokens=12, temperature=0.0)
    assert answer.accepted, answer.message
    assert answer.finish_reason in (TextChunk.STOP, TextChunk.LENGTH)
    assert answer.frame_number > 0
    suite.wait(lambda: len(suite.trajectories) >= before + 5, 'trajectories after the question')
    pieces = texts(suite.speech)[answer.request_id]
    assert ''.join(piece.delta for piece in pieces) == answer.answer
    assert pieces[-1].tokens <= 12

    # A long answer is cancelled; its last piece says so, and its id is then unknown.
    long = suite.call(Ask, 'ask', question='tell me all', max_tokens=100, temperature=0.0)
    cancelled = suite.call(Cancel, 'cancel', request_id=long.request_id)
    assert list(cancelled.cancelled) in ([long.request_id], []), cancelled.message
    suite.wait(lambda: texts(suite.speech)[long.request_id][-1:] and
               texts(suite.speech)[long.request_id][-1].finish_reason, 'last piece')
    if cancelled.cancelled:  # not when it was quicker than we were
        assert texts(suite.speech)[long.request_id][-1].finish_reason == TextChunk.CANCELLED
    again = suite.call(Cancel, 'cancel', request_id=long.request_id)
    assert not again.cancelled and str(long.request_id) in again.message

    # Memory answers with what was published, newest first.
    found = suite.call(QueryMemory, 'query_memory', limit=100)
    assert found.success, found.message
    ids = [entry.entry_id for entry in found.entries]
    assert ids == sorted(ids, reverse=True)
    assert {entry.entry_id for entry in suite.memory} <= {*ids, *(entry.entry_id for entry in suite.memory[-1:])}
    word = found.entries[-1].text.split()[0]
    assert found.entries[-1].text in [entry.text for entry in
                                      suite.call(QueryMemory, 'query_memory', words=f'"{word}!', limit=100).entries]

    # Every output names a frame that was published, with its stamp.
    stamps = {frame.frame_number: frame.header.stamp for frame in suite.frames}
    for output in (*suite.speech, *suite.memory):
        if output.frame_number in stamps:
            assert output.header.stamp == stamps[output.frame_number]
    assert {piece.frame_number for piece in suite.speech} & set(stamps)

    # Increments of a text come in order, without gaps, and end once.
    for pieces in texts(suite.speech).values():
        if pieces[0].sequence == 0:
            assert [piece.sequence for piece in pieces] == list(range(len(pieces)))
        assert not any(piece.finish_reason for piece in pieces[:-1])

    # Nothing that moves the robot leaves its limits.
    assert suite.commands
    for command in suite.commands:
        assert tuple(command.name) == ARMS
        assert_within_limits(command.name, command.position, command.velocity)
    for trajectory in suite.trajectories:
        times = [point.time_from_start.sec + 1e-9 * point.time_from_start.nanosec for point in trajectory.points]
        assert times[0] >= 0 and (np.diff(times) > 0).all()
        for point in trajectory.points:
            assert_within_limits(trajectory.joint_names, point.positions, point.velocities)

    # The status says what runs, and that the weights are random.
    status = suite.status[-1]
    assert (status.model, status.mode, status.state) == ('tiny', 'continuous_batching', 'active')
    assert status.random_weights and 'random' in status.weights
    assert 0 < status.kv_bytes_peak <= status.kv_bytes_allocated <= status.kv_bytes_budget
    suite.stop()


def test_stop_holds_the_robot_until_resumed(suite):
    suite.wait(lambda: len(suite.trajectories) >= 2, 'trajectories')
    assert suite.call(Stop, 'stop', reason='test', cancel_text=True).stopped
    # For a controller that has the rest of a chunk in hand. What was under way comes before it.
    suite.wait(lambda: len(suite.trajectories[-1].points) == 1, 'trajectory to hold')
    chunks, (hold,), held_ns = len(suite.trajectories), suite.trajectories[-1].points, stamp_ns(suite.trajectories[-1])

    def held():
        return [command for command in suite.commands if stamp_ns(command) > held_ns]

    suite.wait(lambda: len(held()) >= 25, 'holding commands')
    assert len(suite.trajectories) == chunks
    assert not any(hold.velocities)
    np.testing.assert_array_equal(hold.positions, suite.commands[-1].position)
    assert np.ptp(np.array([command.position for command in held()]), axis=0).max() < 1e-9
    assert 'stopped' in suite.call(SetInstruction, 'set_instruction', instruction='go on').message
    assert suite.call(SetInstruction, 'set_instruction', instruction='go on', resume=True).accepted
    suite.wait(lambda: len(suite.trajectories) > chunks, 'trajectories after resuming')
    suite.stop()


def test_lifecycle_by_hand_commands_only_while_active(ros_graph, tmp_path):
    suite = Suite(ros_graph, tmp_path, 'autostart:=false')

    def change(transition):
        assert suite.call(ChangeState, 'inference/change_state', transition=Transition(id=transition)).success

    def state():
        return suite.call(GetState, 'inference/get_state').current_state.id

    assert state() == State.PRIMARY_STATE_UNCONFIGURED
    assert not suite.call(Ask, 'ask', question='who are you?').accepted
    change(Transition.TRANSITION_CONFIGURE)
    suite.wait(lambda: suite.frames, 'frames')
    suite.graph.spin_for(0.5)
    assert not suite.trajectories and not suite.commands and not suite.speech
    for _ in range(2):
        change(Transition.TRANSITION_ACTIVATE)
        chunks, pieces = len(suite.trajectories), len(suite.speech)
        suite.wait(lambda: len(suite.trajectories) > chunks and len(suite.speech) > pieces, 'output')  # noqa: B023
        change(Transition.TRANSITION_DEACTIVATE)
        suite.settle()
        after = len(suite.trajectories), len(suite.commands)
        suite.graph.spin_for(0.7)
        assert (len(suite.trajectories), len(suite.commands)) == after
    assert all(pieces[-1].finish_reason for pieces in texts(suite.speech).values())
    change(Transition.TRANSITION_CLEANUP)
    assert state() == State.PRIMARY_STATE_UNCONFIGURED
    change(Transition.TRANSITION_CONFIGURE)
    assert state() == State.PRIMARY_STATE_INACTIVE
    suite.stop()


def test_random_weights_move_nothing_unless_allowed(ros_graph, tmp_path):
    suite = Suite(ros_graph, tmp_path, 'allow_random_weights:=false')
    suite.wait(lambda: any(status.chunks >= 3 for status in suite.status), 'chunks made')
    suite.wait(lambda: any('random' in status.message and 'no commands' in status.message
                           for array in suite.diagnostics for status in array.status), 'diagnostics that say so')
    assert not suite.trajectories and not suite.commands
    suite.stop()


@pytest.mark.parametrize('mode', ['isolated', 'shared_kv'])
def test_other_modes_do_the_same_work(ros_graph, tmp_path, mode):
    suite = Suite(ros_graph, tmp_path, f'mode:={mode}')
    suite.wait(lambda: len(suite.trajectories) >= 2, 'trajectories')
    suite.wait(lambda: len(suite.memory) >= 1, 'memory entry')
    suite.wait(lambda: any(piece.finish_reason == TextChunk.LENGTH for piece in suite.speech), 'spoken line')
    suite.wait(lambda: suite.status and suite.status[-1].mode == mode, 'status')
    suite.stop()
