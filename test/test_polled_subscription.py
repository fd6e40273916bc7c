"""A polled subscription keeps its messages until it is asked."""

import pytest
from rclpy.qos import QoSProfile
from rclpy.serialization import deserialize_message
from std_msgs.msg import Int32

from oxygen_ros.nodes import polled_subscription
from oxygen_ros.nodes.polled_subscription import PolledSubscription


@pytest.fixture
def polled(ros_graph):
    return PolledSubscription(ros_graph.node, Int32, 'numbers', QoSProfile(depth=100))


def test_messages_wait_for_the_poll_and_come_in_order(ros_graph, polled):
    received, heard = [], ros_graph.listen(Int32, 'numbers', QoSProfile(depth=100))
    publisher = ros_graph.node.create_publisher(Int32, 'numbers', QoSProfile(depth=100))
    assert ros_graph.spin_until(lambda: publisher.get_subscription_count() == 2)
    for number in range(50):
        publisher.publish(Int32(data=number))
    assert ros_graph.spin_until(lambda: len(heard) == 50)

    def all_received():
        received.extend(deserialize_message(data, Int32).data for data in polled.poll())
        return len(received) == 50

    assert ros_graph.spin_until(all_received)
    assert received == list(range(50)) and polled.poll() == []


def test_flood_does_not_hold_a_poll_for_ever(ros_graph, polled, monkeypatch):
    monkeypatch.setattr(polled_subscription, 'MOST_AT_ONCE', 3)
    publisher = ros_graph.node.create_publisher(Int32, 'numbers', QoSProfile(depth=100))
    assert ros_graph.spin_until(lambda: publisher.get_subscription_count() == 1)
    for number in range(10):
        publisher.publish(Int32(data=number))
    polls = []

    def all_received():
        polls.append(len(polled.poll()))
        return sum(polls) == 10

    assert ros_graph.spin_until(all_received)
    assert max(polls) <= 3
