"""The inference node with checkpoints of other families than π0.5: frames in, commands of the matching robot out."""

from pathlib import Path

import numpy as np
import pytest
from sensor_msgs.msg import JointState
from trajectory_msgs.msg import JointTrajectory

from oxygen_ros.msg import Frame
from oxygen_ros.nodes.conversion import frame_to_msg
from oxygen_ros.observation import Observation
from oxygen_ros.robot.robot_file import load_robot

GOLDEN = Path(__file__).parent / 'data' / 'golden'


@pytest.mark.parametrize('model, checkpoint, layout, options', [
    ('xiaomi_robotics_0', 'xiaomi/xr0_a', 'libero', ()),
    # Steps and a gripper that is open or closed are not mixed.
    ('starvla_libero', 'starvla/qwengr00t_b', 'libero_starvla', ('command.blend_time:=0.0',)),
])
def test_a_checkpoint_commands_the_robot_of_its_action_layout(ros_graph, tmp_path, model, checkpoint, layout, options):
    robot = load_robot('libero')
    layout = robot.layouts[layout]
    publisher = ros_graph.node.create_publisher(Frame, 'frames', 2)
    trajectories = ros_graph.listen(JointTrajectory, 'joint_trajectory')
    commands = ros_graph.listen(JointState, 'joint_commands', 100)
    settings = ('autostart:=true', f'model:={model}', 'robot:=libero', f'checkpoint:={GOLDEN / checkpoint}',
                f'memory.path:={tmp_path}/memory.db', 'max_frame_age:=10.0', *options)
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
    points = trajectories[-1].points
    assert len(points[0].positions) == len(layout.actions)
    if model == 'starvla_libero':
        gripper = layout.actions.index('input_gripper')
        assert {point.positions[gripper] for point in points} <= {-1.0, 1.0}
    ros_graph.stop(process)
