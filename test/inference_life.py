"""An inference node on a small model, in the process of a test, and what it says."""

import numpy as np
import yaml
from small_policy import SIZES, small_config
from std_msgs.msg import String

from oxygen_ros.msg import Frame, TextChunk
from oxygen_ros.nodes.conversion import frame_to_msg
from oxygen_ros.nodes.inference import InferenceNode
from oxygen_ros.observation import Observation
from oxygen_ros.robot.robot_file import load_robot
from oxygen_ros.srv import Ask

ROBOT = load_robot('unitree_g1')


class Life:
    """An inference node in this process, on a small model, and what it says."""

    def __init__(self, graph, folder, **parameters):
        model = folder / 'small.yaml'
        model.write_text(yaml.safe_dump(small_config(**{**SIZES, 'action_dim': 32, 'prompt_tokens': 60})))
        self.graph, self.number = graph, 0
        self.parameters = {
            'model': str(model), 'memory.path': str(folder / 'memory.db'), 'speech.rate': 0.0, 'memory.rate': 0.0,
            'action.rate': 0.0, 'max_frame_age': 60.0, 'text_frame_age': 60.0, 'text_repetitions': 0,
            'branch_tokens': 1000, 'answer.max_tokens': 4, **parameters}
        self.node = graph.add(InferenceNode, **self.parameters)
        self.speech = graph.listen(TextChunk, 'speech', 1000)
        self.frames = graph.node.create_publisher(Frame, 'frames', 2)
        self.utterances = graph.node.create_publisher(String, 'utterance', 50)

    def start(self):
        self.node.trigger_configure()
        self.node.trigger_activate()
        assert self.node.active
        self.graph.spin_until(lambda: self.frames.get_subscription_count() and self.utterances.get_subscription_count()
                              and self.graph.node.count_publishers('speech'))
        self.graph.spin_for(0.3)
        return self

    def see(self, **details):
        """Publish a frame, and wait until the engine has it."""
        self.number += 1
        now = self.graph.node.get_clock().now().nanoseconds
        picture = np.full((28, 28, 3), 60, np.uint8)
        self.frames.publish(frame_to_msg(Observation(
            self.number, now, {'head': picture}, ROBOT.joint_names,
            np.array([joint.default for joint in ROBOT.joints]))))
        assert self.graph.spin_until(lambda: self.node.session.engine._observation is not None)
        return now

    def client(self, kind, name):
        client = self.graph.node.create_client(kind, name)
        assert self.graph.spin_until(client.service_is_ready)
        return client

    def ask(self, question, **fields):
        return self.client(Ask, 'ask').call_async(Ask.Request(question=question, temperature=-1.0, **fields))

    def result(self, future):
        assert self.graph.spin_until(future.done)
        return future.result()

    def ends(self):
        return {piece.request_id: piece for piece in self.speech if piece.finish_reason}
