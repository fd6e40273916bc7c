"""The inference node with a checkpoint of StarVLA: frames in, commands of the matching robot out."""

from pathlib import Path

import numpy as np
from sensor_msgs.msg import JointState
from trajectory_msgs.msg import JointTrajectory

from oxygen_ros.msg import Frame
from oxygen_ros.nodes.conversion import frame_to_msg
from oxygen_ros.observation import Observation
from oxygen_ros.robot.robot_file import load_robot

CHECKPOINT = Path(__file__).parent / 'data' / 'golden' / 'starvla' / 'qwengr00t_b'


def test_a_checkpoint_commands_the_robot_of_its_action_layout(ros_graph, tmp_path):
    robot = load_robot('libero')
    layout = robot.layouts['libero_starvla']
    publisher = ros_graph.node.create_publisher(Frame, 'frames', 2)
    trajectories = ros_graph.listen(JointTrajectory, 'joint_trajectory')
    commands = ros_graph.listen(JointState, 'joint_commands', 100)
    settings = ('autostart:=true', 'model:=starvla_libero', 'robot:=libero', f'checkpoint:={CHECKPOINT}',
                f'memory.path:={tmp_path}/memory.db', 'max_frame_age:=10.0',
                'command.blend_time:=0.0')  # steps and a gripper that is open or closed are not mixed
    process = ros_graph.start('inference', *[word for setting in settings for word in ('-p', setting)])
    defaults = {joint.name: joint.default for joint in robot.joints}
    for number in range(1, 300):
        picture = np.full((64, 64, 3), number % 256, np.uint8)
        seen = Observation(number, ros_graph.node.get_clock().now().nanoseconds, dict.fromkeys(robot.cameras, picture),
                           layout.state, np.array([defaults[name] for name in layout.state]))
        publisher.publish(frame_to_msg(seen))
        if ros_graph.spin_until(lambda: trajectories and commands, 0.2):
            break
    assert trajectories and commands, ros_graph.stop(process)
    assert tuple(trajectories[-1].joint_names) == layout.actions
    gripper = layout.actions.index('input_gripper')
    assert {point.positions[gripper] for point in trajectories[-1].points} <= {-1.0, 1.0}
    ros_graph.stop(process)
