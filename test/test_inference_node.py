"""The inference node: wrong use in one line, inputs that are late or wrong, a clock that jumps."""

from types import SimpleNamespace

import pytest
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import JointState
from trajectory_msgs.msg import JointTrajectory

from oxygen_ros.cli import main
from oxygen_ros.msg import EngineStatus, Frame
from oxygen_ros.nodes.conversion import frame_to_msg, time_to_msg
from oxygen_ros.nodes.inference import InferenceNode
from oxygen_ros.observation import Observation
from oxygen_ros.robot.robot_file import load_robot

ROBOT = load_robot('unitree_g1')


def observation(number, stamp_ns, cameras=('head', 'front'), joints=None):
    import numpy as np
    joints = ROBOT.joints if joints is None else joints
    picture = np.full((112, 112, 3), number % 256, dtype=np.uint8)
    return Observation(number, stamp_ns, dict.fromkeys(cameras, picture), tuple(joint.name for joint in joints),
                       np.array([joint.default for joint in joints]))


@pytest.mark.parametrize(('setting', 'words'), [
    ('model:=nope', ["unknown model 'nope'", 'tiny']),
    ('robot:=g2', ["unknown robot 'g2'", 'unitree_g1']),
    ('mode:=fast', ["'fast'", 'continuous_batching']),
    ('action.rate:=fast', ['action.rate', "'fast'", 'float']),
    ('action.rate:=-1.0', ['action.rate', '-1']),
    ('acton.rate:=1.0', ['acton.rate', 'did you mean action.rate']),
    ('kv_budget_mib:=1.0', ['KV cache', '1.0 MiB', 'kv_budget_mib']),
    ('checkpoint:=/no/such/folder', ['/no/such/folder', 'is not a directory']),
    ('device:=cuda:9', ["'cuda:9'", 'not available']),
    ('subtask.rate:=1.0', ['subtask.rate', 'tiny', 'knows no subtasks']),
    ('trace_file:=/no/such/folder/trace.json', ['trace_file', '/no/such/folder/trace.json']),
    ('memory.path:=/dev/null/memory.db', ['/dev/null/memory.db', 'permissions']),
])
def test_wrong_parameter_ends_with_one_line_that_names_it(ros_domain, tmp_path, capfd, setting, words):
    code = main(['inference', '-p', 'autostart:=true', '-p', f'memory.path:={tmp_path}/memory.db', '-p', setting])
    lines = [line for line in capfd.readouterr().err.splitlines() if line.strip()]
    assert code == 2
    assert len(lines) == 1, lines
    assert lines[0].startswith('error: ')
    for word in words:
        assert word in lines[0]


class Peer:
    """A perception node of the test's own, and what the inference node says."""

    def __init__(self, graph, folder, *settings):
        self.graph = graph
        self.publisher = graph.node.create_publisher(Frame, 'frames', 2)
        self.trajectories = graph.listen(JointTrajectory, 'joint_trajectory')
        self.commands = graph.listen(JointState, 'joint_commands', 100)
        self.status = graph.listen(EngineStatus, 'status')
        self.diagnostics = graph.listen(DiagnosticArray, '/diagnostics')
        settings = ('autostart:=true', 'allow_random_weights:=true', f'memory.path:={folder}/memory.db', *settings)
        self.process = graph.start('inference', *[word for setting in settings for word in ('-p', setting)])
        self.number = 0

    def publish(self, stamp_ns=None, **details):
        self.number += 1
        stamp_ns = self.graph.node.get_clock().now().nanoseconds if stamp_ns is None else stamp_ns
        self.publisher.publish(frame_to_msg(observation(self.number, stamp_ns, **details)))

    def wait(self, condition, what, each=lambda: None, seconds=60):
        """Wait for a condition; do `each` ten times a second meanwhile."""
        for _ in range(round(10 * seconds)):
            each()
            if self.graph.spin_until(condition, 0.1):
                return
        pytest.fail(f'no {what}; the process: {self.process.poll()}, it says {self.said()}')

    def said(self):
        """Return name of the part -> (level, text), as last heard."""
        return {status.name.split(': ')[1]: (status.level, status.message)
                for array in self.diagnostics for status in array.status if status.name.startswith('inference: ')}


def test_diagnostics_name_the_frames_that_do_not_come_and_then_recover(ros_graph, tmp_path):
    peer = Peer(ros_graph, tmp_path)
    peer.wait(lambda: peer.said().get('frames', (None, ''))[0] == DiagnosticStatus.ERROR, 'error')
    assert 'no frame on /frames' in peer.said()['frames'][1]
    assert 'perception' in peer.said()['frames'][1]
    peer.wait(lambda: len(peer.trajectories) >= 3, 'trajectories', each=peer.publish)
    peer.wait(lambda: peer.said()['frames'][0] == DiagnosticStatus.OK, 'recovery', each=peer.publish)
    # The camera dies: the robot holds, no new chunk is made from an old frame.
    peer.wait(lambda: peer.status[-1].stale_frames > 0, 'stale frame')
    chunks = len(peer.trajectories)
    peer.wait(lambda: peer.said()['frames'][0] == DiagnosticStatus.ERROR, 'error again')
    assert len(peer.trajectories) == chunks
    # Joints that the speed limits held back reach the end of the last chunk, then all rest.
    peer.wait(lambda: not any(peer.commands[-1].velocity), 'rest')
    graph_errors = ros_graph.stop(peer.process)
    assert graph_errors.count('not acting') >= 1


def test_frame_without_a_joint_of_the_state_is_refused_by_name(ros_graph, tmp_path):
    peer = Peer(ros_graph, tmp_path)
    joints = [joint for joint in ROBOT.joints if joint.name != 'left_elbow_joint']
    peer.wait(lambda: peer.said().get('frames', (None, ''))[0] == DiagnosticStatus.ERROR
              and 'left_elbow_joint' in peer.said()['frames'][1], 'refusal', each=lambda: peer.publish(joints=joints))
    assert not peer.trajectories and not peer.commands
    peer.wait(lambda: peer.trajectories, 'trajectories', each=peer.publish)
    ros_graph.stop(peer.process)


def test_missing_camera_is_masked_and_old_frames_are_not_acted_on(ros_graph, tmp_path):
    peer = Peer(ros_graph, tmp_path)
    peer.wait(lambda: peer.trajectories, 'trajectories', each=lambda: peer.publish(cameras=('head',)))
    ros_graph.spin_for(1.0)  # the last good frame gets old
    chunks = len(peer.trajectories)
    stale = peer.status[-1].stale_frames

    def publish_old():
        peer.publish(ros_graph.node.get_clock().now().nanoseconds - 3_000_000_000)

    peer.wait(lambda: peer.status[-1].stale_frames > stale + 3, 'stale frames', each=publish_old)
    assert len(peer.trajectories) == chunks
    ros_graph.stop(peer.process)


def test_simulated_time_that_jumps_back_drops_frames_and_goes_on(ros_graph, tmp_path):
    peer = Peer(ros_graph, tmp_path, 'use_sim_time:=true')
    peer.wait(lambda: '/clock' in peer.said().get('state', (None, ''))[1], 'words about the missing clock')
    clock = ros_graph.node.create_publisher(Clock, '/clock', 10)
    now_ns = [100_000_000_000]

    def tick():
        now_ns[0] += 100_000_000
        clock.publish(Clock(clock=time_to_msg(now_ns[0])))
        peer.publish(now_ns[0])

    peer.wait(lambda: len(peer.trajectories) >= 3, 'trajectories', each=tick)
    assert peer.trajectories[-1].header.stamp.sec >= 100
    now_ns[0] = 50_000_000_000
    chunks = len(peer.trajectories)
    peer.wait(lambda: len(peer.trajectories) >= chunks + 3, 'trajectories after the jump', each=tick)
    assert 50 <= peer.trajectories[-1].header.stamp.sec < 100
    errors = ros_graph.stop(peer.process)
    assert 'jumped back' in errors


def test_chunk_under_way_when_the_clock_jumps_back_does_not_stand_in_the_way(ros_graph, tmp_path):
    # So many steps that the engine is nearly always at work on a chunk.
    peer = Peer(ros_graph, tmp_path, 'use_sim_time:=true', 'action.denoise_steps:=100', 'speech.rate:=0.0',
                'memory.rate:=0.0', 'max_frame_age:=5.0', 'command.lifetime:=10.0')
    clock = ros_graph.node.create_publisher(Clock, '/clock', 10)
    now_ns = [100_000_000_000_000]

    def tick():
        now_ns[0] += 100_000_000
        clock.publish(Clock(clock=time_to_msg(now_ns[0])))
        peer.publish(now_ns[0])

    peer.wait(lambda: peer.trajectories, 'trajectories', each=tick, seconds=120)  # a busy machine takes long to start
    for _ in range(3):
        chunks = len(peer.trajectories)
        peer.wait(lambda: len(peer.trajectories) >= chunks + 3, 'trajectories', each=tick)  # noqa: B023
        now_ns[0] -= 10_000_000_000_000
    ros_graph.stop(peer.process)


def test_clock_that_jumps_starts_the_timers_of_an_active_node_anew():
    # Timers on system time that was set back would not fire until it is reached again.
    done, posted = [], []
    node = SimpleNamespace(
        active=True, forgetting=None, mailbox=SimpleNamespace(put=posted.append),
        session=SimpleNamespace(commands=SimpleNamespace(clear=lambda: done.append('clear'))),
        worker=SimpleNamespace(post=lambda command: None),
        _task_timers=SimpleNamespace(stop=lambda: done.append('stop'), start=lambda: done.append('start')))
    node._restart_timers = lambda: InferenceNode._restart_timers(node)
    InferenceNode._on_clock_jump(node)
    assert done == ['clear']
    for work in posted:
        work()
    assert done == ['clear', 'stop', 'start']
    node.active = False
    posted[0]()
    assert len(done) == 3
