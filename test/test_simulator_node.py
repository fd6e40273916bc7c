"""The simulator node over ROS: pictures, joint states and clock out; commands in, as a controller takes them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from builtin_interfaces.msg import Duration, Time
from rclpy.parameter import Parameter
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import String
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from oxygen_ros.nodes.conversion import time_from_msg
from oxygen_ros.nodes.simulator import SimulatorNode
from oxygen_ros.simulation.robot_model import ACTUATED, JOINTS

pytestmark = pytest.mark.usefixtures('renders')


def latest_positions(states: list[JointState]) -> np.ndarray:
    assert tuple(states[-1].name) == ACTUATED
    return np.array(states[-1].position)


def test_pictures_and_joint_states_carry_one_time_and_the_clock_goes_with_them(ros_graph):
    node = ros_graph.add(SimulatorNode, simulated_time=True, speed=0.0)
    clock, states = ros_graph.listen(Clock, '/clock', 100), ros_graph.listen(JointState, 'joint_states')
    pictures = {name: ros_graph.listen(Image, f'/camera/{name}/image_raw')
                for name in ('head', 'left_wrist', 'right_wrist')}
    ros_graph.spin_until(lambda: all(publisher.get_subscription_count() for publisher in node._cameras.values()))
    node.advance(0.5)
    assert ros_graph.spin_until(lambda: len(clock) == 50 and all(map(len, pictures.values())) and len(states) >= 5)
    picture = pictures['head'][-1]
    assert (picture.width, picture.height, picture.encoding) == (112, 112, 'rgb8')
    assert np.ptp(np.frombuffer(picture.data, np.uint8)) > 50
    stamps = [time_from_msg(message.header.stamp) for message in pictures['head']]
    assert stamps == [time_from_msg(message.header.stamp) for message in pictures['left_wrist']]
    assert set(np.diff(stamps)) <= {100_000_000}
    assert set(stamps) <= {time_from_msg(message.clock) for message in clock}
    assert node.now_ns == 1_500_000_000


def test_still_pictures_differ_by_the_noise_of_the_camera_alone(ros_graph):
    node = ros_graph.add(SimulatorNode, simulated_time=True, speed=0.0)
    pictures = ros_graph.listen(Image, '/camera/head/image_raw')
    ros_graph.spin_until(lambda: node._cameras['head'].get_subscription_count())
    node.advance(0.3)
    assert ros_graph.spin_until(lambda: len(pictures) >= 2)
    one, other = (np.frombuffer(message.data, np.uint8).astype(int) for message in pictures[:2])
    assert 0.2 < (one - other).std() < 3 and abs(one.mean() - node.simulation.images()['head'].mean()) < 0.5


def test_joint_command_moves_the_joint_that_it_names(ros_graph):
    node = ros_graph.add(SimulatorNode, simulated_time=True, speed=0.0)
    states = ros_graph.listen(JointState, 'joint_states')
    commands = ros_graph.node.create_publisher(JointState, 'joint_commands', 10)
    node.advance(0.05)
    assert ros_graph.spin_until(lambda: commands.get_subscription_count() and states)
    before = latest_positions(states)
    commands.publish(JointState(name=[JOINTS[10], JOINTS[3]], position=[1.4, 1.9]))
    assert ros_graph.spin_until(lambda: abs(node.simulation.commanded[3] - 1.9) < 1e-9)
    node.advance(1.5)
    ros_graph.spin_until(lambda: abs(latest_positions(states)[3] - 1.9) < 0.01, 5)
    after = latest_positions(states)
    assert after[[3, 10]] == pytest.approx([1.9, 1.4], abs=0.01)
    still = [index for index in range(len(ACTUATED)) if index not in (3, 10)]
    assert after[still] == pytest.approx(before[still], abs=0.02)


def test_wrong_commands_are_refused_and_leave_the_robot_where_it_is(ros_graph):
    node = ros_graph.add(SimulatorNode, simulated_time=True, speed=0.0)
    commands = ros_graph.node.create_publisher(JointState, 'joint_commands', 10)
    node.advance(0.05)
    assert ros_graph.spin_until(commands.get_subscription_count)
    before = node.simulation.commanded
    commands.publish(JointState(name=['knee'], position=[1.0]))
    commands.publish(JointState(name=[JOINTS[0]], position=[float('nan')]))
    commands.publish(JointState(name=[JOINTS[0], JOINTS[1]], position=[0.1]))
    commands.publish(JointState(name=[JOINTS[6]], position=[9.0]))  # the last is taken, up to the limit of the joint
    assert ros_graph.spin_until(lambda: node.simulation.commanded[6] != before[6])
    assert node.simulation.commanded[6] == pytest.approx(1.5708, abs=1e-3)
    assert np.delete(node.simulation.commanded, 6) == pytest.approx(np.delete(before, 6))


def test_trajectory_is_followed_in_its_own_time(ros_graph):
    node = ros_graph.add(SimulatorNode, simulated_time=True, speed=0.0, commands='joint_trajectory')
    publisher = ros_graph.node.create_publisher(JointTrajectory, 'joint_trajectory', 10)
    node.advance(0.1)
    assert ros_graph.spin_until(publisher.get_subscription_count)
    start = node.simulation.commanded[3]
    message = JointTrajectory(joint_names=[JOINTS[3]], points=[
        JointTrajectoryPoint(positions=[start + 0.2], time_from_start=Duration(sec=1)),
        JointTrajectoryPoint(positions=[start + 0.3], time_from_start=Duration(sec=2))])
    message.header.stamp = Time(sec=1, nanosec=100_000_000)
    publisher.publish(message)
    assert ros_graph.spin_until(lambda: len(node._follower._times) > 1)
    node.advance(0.5)
    assert node.simulation.commanded[3] == pytest.approx(start + 0.1, abs=0.01)
    node.advance(1.0)
    assert node.simulation.commanded[3] == pytest.approx(start + 0.25, abs=0.01)
    publisher.publish(JointTrajectory())  # stop
    assert ros_graph.spin_until(lambda: len(node._follower._times) == 1)
    node.advance(1.0)
    assert node.simulation.commanded[3] == pytest.approx(start + 0.25, abs=0.01)


def test_scene_is_reset_by_service_and_by_its_seed(ros_graph):
    node = ros_graph.add(SimulatorNode, simulated_time=True, speed=0.0, truth_rate=10.0, view_rate=10.0, seed=3)
    truths, views = ros_graph.listen(String, 'truth'), ros_graph.listen(Image, 'view')
    node.advance(0.1)
    first = node.simulation.scene
    node.simulation.command(np.full(14, 0.1))
    node.advance(0.5)
    reset = ros_graph.node.create_client(Trigger, '/simulator/reset')
    assert reset.wait_for_service(10)
    answer = reset.call_async(Trigger.Request())
    assert ros_graph.spin_until(answer.done)
    assert answer.result().success and 'scene 3' in answer.result().message
    assert node.simulation.scene == first and node.simulation.truth().from_rest < 1e-9
    node.set_parameters([Parameter('seed', value=4)])
    assert node.simulation.scene != first
    node.advance(0.2)
    assert ros_graph.spin_until(lambda: truths and json.loads(truths[-1].data)['seed'] == 4)
    assert ros_graph.spin_until(lambda: views) and (views[-1].width, views[-1].height) == (640, 480)
    truth = json.loads(truths[-1].data)
    assert [item['colour'] for item in truth['objects']] == [item.colour for item in node.simulation.scene.objects]


def test_process_keeps_the_time_of_the_machine_and_ends_in_order(ros_graph):
    process = ros_graph.start('simulate', '--seed', '5')
    states, pictures = ros_graph.listen(JointState, 'joint_states'), ros_graph.listen(Image, '/camera/head/image_raw')
    assert ros_graph.spin_until(lambda: len(states) > 5 and len(pictures) > 2, 90)
    age = ros_graph.node.get_clock().now().nanoseconds - time_from_msg(states[-1].header.stamp)
    assert abs(age) < 60e9  # of the clock of the machine, not from 1 on
    assert 'scene 5' in ros_graph.stop(process)
