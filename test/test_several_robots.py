"""Two suites in namespaces of one domain: what belongs to one robot does not come to the other."""

import numpy as np
import pytest
import yaml
from diagnostic_msgs.msg import DiagnosticArray
from sensor_msgs.msg import Image, JointState
from small_policy import SIZES, small_config
from std_msgs.msg import String
from trajectory_msgs.msg import JointTrajectory

from oxygen_ros.msg import EngineStatus, Frame, MemoryEntry, TextChunk
from oxygen_ros.nodes.conversion import image_to_msg, time_to_msg
from oxygen_ros.nodes.inference import InferenceNode
from oxygen_ros.nodes.perception import PerceptionNode
from oxygen_ros.robot.robot_file import load_robot
from oxygen_ros.srv import Ask, Cancel, QueryMemory, SetInstruction, Stop

ROBOT = load_robot('unitree_g1')


class OneRobot:
    """Sensors, perception and inference of one robot, and what it says."""

    def __init__(self, graph, name, colour, angle, model, folder):
        self.graph, self.name, self.colour = graph, name, colour
        self.pose = np.array([joint.default for joint in ROBOT.joints])
        self.pose[0] = angle
        self.perception = graph.add(PerceptionNode, namespace=name, cameras=['head'], camera_topics=['head/image'],
                                    image_height=28, image_width=28)
        self.inference = graph.add(InferenceNode, namespace=name, **{
            'model': str(model), 'memory.path': str(folder / f'{name}.db'), 'memory.rate': 5.0, 'memory.max_tokens': 4,
            'speech.rate': 0.0, 'action.rate': 5.0, 'allow_random_weights': True, 'max_frame_age': 5.0,
            'command.lifetime': 10.0, 'answer.max_tokens': 4, 'text_frame_age': 5.0, 'text_repetitions': 0})
        self.images = graph.node.create_publisher(Image, f'/{name}/head/image', 2)
        self.joints = graph.node.create_publisher(JointState, f'/{name}/joint_states', 10)
        graph.node.create_timer(0.1, self._sense)
        self.heard = {topic: graph.listen(kind, f'/{name}/{topic}', 1000) for topic, kind in (
            ('frames', Frame), ('joint_trajectory', JointTrajectory), ('joint_commands', JointState),
            ('speech', TextChunk), ('memory', MemoryEntry), ('status', EngineStatus))}

    def _sense(self):
        now = self.graph.node.get_clock().now().nanoseconds
        self.images.publish(image_to_msg(np.full((28, 28, 3), self.colour, np.uint8), now))
        message = JointState(name=list(ROBOT.joint_names), position=self.pose.tolist())
        message.header.stamp = time_to_msg(now)
        self.joints.publish(message)

    def call(self, kind, service, **fields):
        client = self.graph.node.create_client(kind, f'/{self.name}/{service}')
        assert self.graph.spin_until(client.service_is_ready)
        future = client.call_async(kind.Request(**fields))
        assert self.graph.spin_until(future.done)
        return future.result()


@pytest.fixture
def robots(ros_graph, tmp_path):
    model = tmp_path / 'small.yaml'
    model.write_text(yaml.safe_dump(small_config(**{**SIZES, 'action_dim': 32, 'prompt_tokens': 60})))
    robots = [OneRobot(ros_graph, 'robot1', 40, 0.01, model, tmp_path),
              OneRobot(ros_graph, 'robot2', 200, 0.05, model, tmp_path)]
    for robot in robots:
        robot.inference.trigger_configure()
        robot.inference.trigger_activate()
    assert ros_graph.spin_until(lambda: all(
        robot.heard[topic] for robot in robots for topic in ('frames', 'joint_trajectory', 'memory', 'status')))
    return robots


def test_frames_commands_texts_and_notes_of_two_robots_do_not_mix(ros_graph, robots):
    one, two = robots
    diagnostics = ros_graph.listen(DiagnosticArray, '/diagnostics', 100)
    for robot in robots:
        for frame in robot.heard['frames']:
            assert set(frame.images[0].data) == {robot.colour}
            assert dict(zip(frame.joint_state.name, frame.joint_state.position))[ROBOT.joint_names[0]] == robot.pose[0]

    # Instructions, by service and by topic.
    assert one.call(SetInstruction, 'set_instruction', instruction='wave').accepted
    assert (one.inference.instruction, two.inference.instruction) == ('wave', 'look around')
    topic = ros_graph.node.create_publisher(String, '/robot2/instruction', 5)
    assert ros_graph.spin_until(topic.get_subscription_count)
    topic.publish(String(data='sit'))
    assert ros_graph.spin_until(lambda: two.inference.instruction == 'sit')
    assert one.inference.instruction == 'wave'

    # Answers, and requests that are cancelled: both robots count from 1.
    answer = two.call(Ask, 'ask', question='what?', wait=True)
    assert answer.accepted
    assert not [piece for piece in one.heard['speech'] if piece.task == 'answer']
    assert [piece.request_id for piece in two.heard['speech'] if piece.task == 'answer']
    assert not one.call(Cancel, 'cancel', request_id=answer.request_id).cancelled

    # Notes, by topic and in the store.
    one.inference.memory.add('only one has seen it', 1, 1).result(10)
    assert [entry.text for entry in one.call(QueryMemory, 'query_memory', words='only seen').entries]
    assert not two.call(QueryMemory, 'query_memory', words='only seen').entries

    # A stop holds one robot, and the other goes on.
    assert one.call(Stop, 'stop', reason='test').stopped
    ros_graph.spin_for(0.3)
    counts = [len(robot.heard['joint_trajectory']) for robot in robots]
    assert ros_graph.spin_until(lambda: len(two.heard['joint_trajectory']) >= counts[1] + 3)
    assert len(one.heard['joint_trajectory']) == counts[0]
    assert ros_graph.spin_until(lambda: one.heard['status'][-1].state == 'stopped')
    assert two.heard['status'][-1].state == 'active'

    def names():
        return {status.name for array in diagnostics for status in array.status}

    assert ros_graph.spin_until(lambda: {'robot1/inference: state', 'robot2/inference: state',
                                         'robot1/perception: frames', 'robot2/perception: frames'} <= names())
    assert all(name.startswith(('robot1/', 'robot2/')) for name in names())
