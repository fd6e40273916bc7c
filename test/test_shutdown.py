"""Case 99: nothing moves after a deactivation, no old chunk is continued, a signal ends a node in an orderly way."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from sensor_msgs.msg import JointState
from trajectory_msgs.msg import JointTrajectory

from oxygen_ros.msg import Frame
from oxygen_ros.nodes.conversion import frame_to_msg, time_from_msg
from oxygen_ros.observation import Observation
from oxygen_ros.robot.robot_file import load_robot

ROBOT = load_robot('unitree_g1')
CASE = Path(__file__).parent / 'data' / 'cases' / '99-stop-and-shutdown'

HANGING = '''
import sys, threading
from oxygen_ros.cli import main
from oxygen_ros.nodes.inference import InferenceNode
from oxygen_ros.soak.faults import FaultyModel, ModelFault

class Model(FaultyModel):
    chunks = 0

    def denoise(self, *arguments):
        self.chunks += 1
        if self.chunks == 20:
            self.inject('denoise', ModelFault.HANGS)
            print('hangs', flush=True)
        return super().denoise(*arguments)

InferenceNode.wrap = lambda self, model: Model(model)
sys.exit(main(sys.argv[1:]))
'''


class Peer:
    """Frames for an inference process, and what it commands."""

    def __init__(self, graph, folder, script=None):
        self.graph, self.number = graph, 0
        self.commands, self.trajectories = (graph.listen(JointState, 'joint_commands', 100),
                                            graph.listen(JointTrajectory, 'joint_trajectory', 100))
        frames = graph.node.create_publisher(Frame, 'frames', 2)
        pose = np.array([joint.default for joint in ROBOT.joints])

        def publish():
            self.number += 1
            now = graph.node.get_clock().now().nanoseconds
            frames.publish(frame_to_msg(Observation(
                self.number, now, {'head': np.zeros((56, 56, 3), np.uint8)}, ROBOT.joint_names, pose)))

        graph.node.create_timer(0.1, publish)
        words = ['inference', *[word for setting in (
            'autostart:=true', 'allow_random_weights:=true', f'memory.path:={folder}/memory.db', 'speech.rate:=0.0',
            'memory.rate:=0.0', 'command.lifetime:=10.0', 'max_frame_age:=5.0') for word in ('-p', setting)]]
        if script is None:
            self.process = graph.start(*words)
        else:
            self.process = subprocess.Popen([sys.executable, '-c', script, *words], text=True, stdout=subprocess.PIPE,
                                            stderr=subprocess.PIPE)
            graph._processes.append(self.process)

    def moves(self):
        before = len(self.trajectories)
        assert self.graph.spin_until(lambda: len(self.trajectories) >= before + 3, 60), self.process.poll()

    def holds(self):
        """The last trajectory has one point and is at rest."""
        assert self.graph.spin_until(lambda: len(self.trajectories[-1].points) == 1, 5)


def test_nothing_is_commanded_after_a_deactivation_and_no_old_chunk_is_continued(ros_graph, tmp_path):
    quiet_ns = json.loads((CASE / 'case.json').read_text())['expected']['quiet_after_s'] * 1e9
    peer = Peer(ros_graph, tmp_path)
    peer.moves()
    change = ros_graph.node.create_client(ChangeState, 'inference/change_state')

    def transition(number):
        assert ros_graph.spin_until(change.service_is_ready)
        future = change.call_async(ChangeState.Request(transition=Transition(id=number)))
        assert ros_graph.spin_until(future.done) and future.result().success

    transition(Transition.TRANSITION_DEACTIVATE)
    off_ns = ros_graph.node.get_clock().now().nanoseconds
    peer.holds()
    ros_graph.spin_for(1.0)
    assert all(time_from_msg(command.header.stamp) < off_ns + quiet_ns for command in peer.commands)
    commands, trajectories = len(peer.commands), len(peer.trajectories)
    on_ns = ros_graph.node.get_clock().now().nanoseconds
    transition(Transition.TRANSITION_ACTIVATE)
    peer.moves()
    # The first command after it begins where the robot is measured, not where the old chunk was.
    assert ros_graph.spin_until(lambda: len(peer.commands) > commands)
    first = peer.commands[commands]
    poses = {joint.name: joint.default for joint in ROBOT.joints}
    speeds = {joint.name: joint.velocity for joint in ROBOT.joints}
    assert time_from_msg(first.header.stamp) >= on_ns
    assert all(abs(position - poses[name]) <= 0.1 * speeds[name] for name, position in zip(first.name, first.position))
    assert time_from_msg(peer.trajectories[trajectories].header.stamp) >= on_ns
    ros_graph.stop(peer.process)
    peer.holds()


def test_signal_makes_the_robot_hold_and_ends_with_code_0_also_while_the_model_hangs(ros_graph, tmp_path):
    peer = Peer(ros_graph, tmp_path, HANGING)
    peer.moves()
    assert peer.process.stdout.readline() == 'hangs\n'
    ros_graph.spin_for(0.3)
    errors = ros_graph.stop(peer.process, signal.SIGTERM)
    peer.holds()
    assert 'does not answer' in errors or 'did not end' in errors
