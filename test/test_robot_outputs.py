"""The inference node and a controller of the robot: order of joints, limits, and what was latched before the start."""

import numpy as np
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from std_msgs.msg import Float64MultiArray, String
from test_forward_controller import controller
from test_inference_node import ROBOT, Peer

JOINTS = ['right_elbow_joint', 'waist_yaw_joint', 'left_elbow_joint']
LATCHED = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL)


def test_controller_gets_the_positions_in_its_order_and_the_latched_instruction_is_followed(ros_graph, tmp_path):
    ros_graph.node.create_publisher(String, 'instruction', LATCHED).publish(String(data='wave'))
    ros_graph.add(controller('arms', JOINTS))
    arms = ros_graph.listen(Float64MultiArray, 'arms/commands', 100)
    peer = Peer(ros_graph, tmp_path, 'command.forward_controller:=arms', 'command.rate:=20.0')
    peer.wait(lambda: len(arms) >= 30 and len(peer.commands) >= 30, 'commands', each=peer.publish)
    by_name = [dict(zip(command.name, command.position)) for command in peer.commands]
    sent = {tuple(command[name] for name in JOINTS) for command in by_name}
    assert sum(tuple(command.data) in sent for command in arms) >= 25  # the two topics may lose different ones
    limits = ROBOT.select(JOINTS)
    moved = np.array([command.data for command in arms])
    assert (moved >= [joint.lower for joint in limits]).all() and (moved <= [joint.upper for joint in limits]).all()
    peer.wait(lambda: peer.said().get('controller', (None, ''))[1] == 'gets the positions', 'word about the controller',
              each=peer.publish)
    state = next(status for array in reversed(peer.diagnostics) for status in array.status
                 if status.name == 'inference: state')
    assert {item.key: item.value for item in state.values}['instruction'] == 'wave'
    ros_graph.stop(peer.process)
