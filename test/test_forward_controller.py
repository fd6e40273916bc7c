"""Positions for a controller that takes numbers without names: in its own order, or not at all."""

import numpy as np
import pytest
from rclpy.lifecycle import LifecycleNode
from rclpy.node import Node
from std_msgs.msg import Float64MultiArray

from oxygen_ros.nodes.forward_controller import ForwardController

COMMANDED = ('left_elbow', 'right_elbow', 'waist')
POSITIONS = np.array([0.1, 0.2, 0.3])


def controller(name, joints, interface='position'):
    """Return a node with the parameters of a forward_command_controller."""
    class Controller(Node):
        def __init__(self, **arguments):
            super().__init__(name, **arguments)
            self.declare_parameter('joints', joints)
            self.declare_parameter('interface_name', interface)

    return Controller


@pytest.fixture
def node(ros_graph):
    node = ros_graph.add(lambda **arguments: LifecycleNode('inference', **arguments))
    yield node


def adapter(ros_graph, node, name='arms'):
    received = ros_graph.listen(Float64MultiArray, f'/{name}/commands')
    made = ForwardController(node, name)
    node.trigger_configure()
    node.trigger_activate()
    return made, received


def publish_until(ros_graph, made, condition):
    def step():
        made.publish(COMMANDED, POSITIONS)
        return condition()

    assert ros_graph.spin_until(step)


def test_positions_come_in_the_order_of_the_controller(ros_graph, node):
    ros_graph.add(controller('arms', ['waist', 'left_elbow']))
    made, received = adapter(ros_graph, node)
    publish_until(ros_graph, made, lambda: received)
    assert received[0].data.tolist() == [0.3, 0.1] and made.problem == ''


def test_nothing_is_published_before_the_controller_has_told_its_joints(ros_graph, node):
    made, received = adapter(ros_graph, node)
    for _ in range(5):
        made.publish(COMMANDED, POSITIONS)
        ros_graph.spin_for(0.05)
    assert not received and 'has not told its joints' in made.problem
    ros_graph.add(controller('arms', ['right_elbow']))  # it may start later
    publish_until(ros_graph, made, lambda: received)
    assert received[0].data.tolist() == [0.2]


@pytest.mark.parametrize(('joints', 'interface', 'words'), [
    (['waist', 'left_knee'], 'position', ["'left_knee'", 'does not command']),
    (['waist', 'waist'], 'position', ['twice']),
    (['waist'], 'effort', ["'effort'", 'positions']),
])
def test_controller_that_cannot_be_served_gets_nothing_and_the_reason_is_told(ros_graph, node, joints, interface,
                                                                              words):
    ros_graph.add(controller('arms', joints, interface))
    made, received = adapter(ros_graph, node)
    publish_until(ros_graph, made, lambda: all(word in made.problem for word in words))
    ros_graph.spin_for(0.3)
    assert not received
