"""A polled subscription keeps its messages until it is asked."""

from rclpy.qos import QoSProfile
from rclpy.serialization import deserialize_message
from std_msgs.msg import Int32

from oxygen_ros.nodes.polled_subscription import PolledSubscription


def test_messages_wait_for_the_poll_and_come_in_order(ros_graph):
    received, heard = [], ros_graph.listen(Int32, 'numbers', QoSProfile(depth=100))
    polled = PolledSubscription(
        ros_graph.node, Int32, 'numbers', lambda data: received.append(deserialize_message(data, Int32).data),
        QoSProfile(depth=100))
    publisher = ros_graph.node.create_publisher(Int32, 'numbers', QoSProfile(depth=100))
    assert ros_graph.spin_until(lambda: publisher.get_subscription_count() == 2)
    for number in range(50):
        publisher.publish(Int32(data=number))
    assert ros_graph.spin_until(lambda: len(heard) == 50)
    assert received == []
    assert ros_graph.spin_until(lambda: polled.poll() or len(received) == 50)
    assert received == list(range(50))
    polled.poll()
    assert len(received) == 50
