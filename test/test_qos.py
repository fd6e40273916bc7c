"""Endpoints that do not match are named on both sides; a latched instruction counts when it was published before."""

from pathlib import Path

from diagnostic_msgs.msg import DiagnosticArray
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import String

from oxygen_ros.msg import Frame
from oxygen_ros.nodes.latched_text import LatchedText
from oxygen_ros.nodes.perception import PerceptionNode
from oxygen_ros.nodes.qos_watch import QosWatch
from oxygen_ros.nodes.recorded_qos import publisher_qos
from oxygen_ros.replay.bag import Bag

CASES = Path(__file__).parent / 'data' / 'cases'

RELIABLE = QoSProfile(depth=5, reliability=ReliabilityPolicy.RELIABLE)
BEST_EFFORT = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
LATCHED = QoSProfile(depth=1, reliability=ReliabilityPolicy.RELIABLE, durability=DurabilityPolicy.TRANSIENT_LOCAL)


def add(ros_graph, name):
    return ros_graph.add(lambda **arguments: Node(name, **arguments))


def test_both_directions_of_a_mismatch_are_named_with_both_sides_and_end(ros_graph):
    ours, theirs = add(ros_graph, 'ours'), add(ros_graph, 'theirs')
    watch = QosWatch(ours)
    ours.create_subscription(String, '/hears', lambda _: None, RELIABLE)
    ours.create_publisher(String, '/says', BEST_EFFORT)
    talker = theirs.create_publisher(String, '/hears', BEST_EFFORT)
    listener = theirs.create_subscription(String, '/says', lambda _: None, RELIABLE)
    theirs.create_subscription(String, '/says', lambda _: None, BEST_EFFORT)
    assert ros_graph.spin_until(lambda: len(watch.check()) == 2)
    hears, says = sorted(watch.check(), key=lambda text: '/says' in text)
    for text, topic, side in ((hears, '/hears', 'subscription'), (says, '/says', 'publisher')):
        assert topic in text and "'theirs'" in text and f'qos_overrides.{topic}.{side}' in text
        assert 'best effort' in text and 'reliable' in text
    theirs.destroy_publisher(talker)
    theirs.destroy_subscription(listener)
    assert ros_graph.spin_until(lambda: watch.check() == ())


def test_frames_that_nobody_can_get_are_an_error_in_the_diagnostics_of_perception(ros_graph):
    ros_graph.add(PerceptionNode, robot='', cameras=['left'], camera_topics=['/left'], joint_states='',
                  **{'qos_overrides./frames.publisher.reliability': 'best_effort'})
    ros_graph.node.create_subscription(Frame, 'frames', lambda _: None, RELIABLE)
    diagnostics = ros_graph.listen(DiagnosticArray, '/diagnostics')

    def told():
        return any(status.level == b'\x02' and '/frames' in status.message and "'test'" in status.message
                   for message in diagnostics for status in message.status if status.name.endswith(': qos'))

    assert ros_graph.spin_until(told)


def test_text_that_was_latched_before_the_node_came_is_taken_once(ros_graph):
    speaker = add(ros_graph, 'speaker')
    latched = speaker.create_publisher(String, '/instruction', LATCHED)
    latched.publish(String(data='wave'))
    taken = []
    node = add(ros_graph, 'node')
    texts = LatchedText(node, '/instruction', taken.append)
    assert ros_graph.spin_until(lambda: taken == ['wave'])
    assert ros_graph.spin_until(lambda: latched.get_subscription_count() == 2)
    latched.publish(String(data='stop'))
    volatile = speaker.create_publisher(String, '/instruction', RELIABLE)
    assert ros_graph.spin_until(lambda: len(taken) >= 2 and volatile.get_subscription_count())
    volatile.publish(String(data='nod'))
    assert ros_graph.spin_until(lambda: len(taken) >= 3)
    ros_graph.spin_for(0.2)
    assert taken == ['wave', 'stop', 'nod'] and texts.last == 'stop'  # each once; only latched ones outlive a start
    assert QosWatch(node, (texts.latched_subscription,)).check() == ()


def test_recorded_best_effort_cameras_reach_the_perception_node(ros_graph):
    ros_graph.add(PerceptionNode, robot='', cameras=['left'], camera_topics=['/left/image_raw'], rate=0.0,
                  joint_states='/joint_states')
    frames = ros_graph.listen(Frame, 'frames', QoSProfile(depth=50))
    diagnostics = ros_graph.listen(DiagnosticArray, '/diagnostics')
    with Bag(CASES / '97-best-effort-cameras' / 'bag') as bag:
        kinds = {topic.name: Image if topic.type.endswith('Image') else JointState for topic in bag.topics}
        publishers = {topic.name: ros_graph.node.create_publisher(kinds[topic.name], topic.name, publisher_qos(topic))
                      for topic in bag.topics}
        assert ros_graph.spin_until(lambda: all(item.get_subscription_count() for item in publishers.values()))
        for message in bag.messages():
            told = deserialize_message(message.data, kinds[message.topic])
            told.header.stamp = ros_graph.node.get_clock().now().to_msg()
            publishers[message.topic].publish(told)
            ros_graph.spin_for(0.02)  # quicker than recorded
    assert ros_graph.spin_until(lambda: len(frames) >= 36)
    assert not any(status.level == b'\x02' for message in diagnostics for status in message.status
                   if status.name.endswith(': qos'))
