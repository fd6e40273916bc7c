"""Evaluation over ROS in simulated time. In place of perception and inference stands a node that knows the truth."""

from __future__ import annotations

import numpy as np
import pytest
from rclpy.node import Node
from sensor_msgs.msg import JointState
from std_msgs.msg import Header
from trajectory_msgs.msg import JointTrajectory

from oxygen_ros.evaluation.closed_loop import Rates
from oxygen_ros.msg import MemoryEntry, TextChunk
from oxygen_ros.nodes.conversion import time_to_msg
from oxygen_ros.nodes.episodes_over_ros import EpisodesOverRos
from oxygen_ros.processes import ProcessGroup
from oxygen_ros.simulation import language
from oxygen_ros.simulation.episode import Episode, Outcome, expected_line
from oxygen_ros.simulation.robot_model import JOINTS
from oxygen_ros.srv import Ask, SetInstruction, Stop

pytestmark = pytest.mark.usefixtures('renders')


class KnowingNode(Node):
    """Does, says and notes what is right: for the last picture whose truth the evaluation has kept."""

    def __init__(self, evaluation: EpisodesOverRos) -> None:
        super().__init__('inference', context=evaluation._context)
        self.evaluation, self.instruction, self.requests = evaluation, '', 0
        self.lies = False
        self.commands = self.create_publisher(JointState, 'joint_commands', 10)
        self.trajectories = self.create_publisher(JointTrajectory, 'joint_trajectory', 10)
        self.speech = self.create_publisher(TextChunk, 'speech', 10)
        self.memory = self.create_publisher(MemoryEntry, 'memory', 10)
        self.create_subscription(JointState, 'joint_states', self.on_joints, 50)
        self.create_service(SetInstruction, 'set_instruction', self.on_instruction)
        self.create_service(Stop, 'stop', self.on_stop)
        self.create_service(Ask, 'ask', self.on_question)
        self.count = 0

    def on_instruction(self, request, response):
        self.instruction, response.accepted = request.instruction, True
        return response

    def on_stop(self, request, response):
        self.instruction, response.stopped = '', True
        return response

    def on_joints(self, message: JointState) -> None:
        self.count += 1
        if self.count % 5 or not self.instruction:
            return
        oracle = self.evaluation._simulator.simulation.oracle
        stamp_ns, truth = list(self.evaluation._truths.items())[-1]
        kind, name = language.read_instruction(self.instruction)
        item = next((item for item in truth.objects if item.name == name), None)
        goal = oracle.goal(item.arm, item.point_above) if item else oracle.rest
        self.commands.publish(JointState(name=list(JOINTS), position=goal.tolist()))  # also when it hears of it late
        self.trajectories.publish(JointTrajectory())
        header, self.requests = Header(stamp=time_to_msg(stamp_ns)), self.requests + 1
        line = 'i rest' if self.lies else expected_line(self.instruction, truth)[0]
        for sequence, (text, finish) in enumerate(((line[:5], TextChunk.NOT_FINISHED), (line[5:], TextChunk.STOP))):
            self.speech.publish(TextChunk(header=header, request_id=self.requests, task='speech', sequence=sequence,
                                          delta=text, finish_reason=finish))
        self.memory.publish(MemoryEntry(header=header, text=language.note(truth.objects).text))

    def on_question(self, request, response):
        stamp_ns, truth = list(self.evaluation._truths.items())[-1]
        response.accepted, response.finish_reason = True, TextChunk.STOP
        random = np.random.default_rng(0)
        response.answer = next(question.answer for _ in range(1000) for question in language.draw_questions(
            random, truth.objects) if question.question == request.question)
        response.frame_stamp = time_to_msg(stamp_ns)
        return response


@pytest.fixture
def evaluation(ros_domain, monkeypatch):
    def start_nodes(self):
        self.knowing = KnowingNode(self)
        self._executor.add_node(self.knowing)
        self._simulator.start()

    monkeypatch.setattr(EpisodesOverRos, '_start_nodes', start_nodes)
    with EpisodesOverRos({}, Rates.with_texts(), speed=2.0) as evaluation:
        yield evaluation


def test_policy_that_knows_the_truth_succeeds_and_says_it(evaluation):
    scene = evaluation._simulator.simulation.reset(1)
    item = scene.objects[-1]
    result = evaluation.run(Episode(1, 'reach', f'go to the {item.name}', item.name))
    assert result.outcome is Outcome.SUCCESS and result.distance < 0.03 and 1 <= result.seconds < 6
    assert result.chunks and result.lines and all(result.lines)
    assert all(right for _, right in result.answers)
    assert result.notes and all(note.true == note.total for note in result.notes)
    assert np.isfinite(result.jerk)


def test_next_episode_begins_anew_and_lies_are_noticed(evaluation):
    scene = evaluation._simulator.simulation.reset(2)
    for number, item in enumerate(scene.objects[:2]):
        evaluation.knowing.lies = number == 1
        result = evaluation.run(Episode(2, 'reach', f'go to the {item.name}', item.name))
        assert result.outcome is Outcome.SUCCESS
        assert set(result.lines) == {number == 0}
    absent = Episode(2, 'absent', f'go to the {language.absent_names(scene.objects)[0][0]}', 'unknown')
    assert evaluation.run(absent, duration=2.0).outcome is Outcome.SUCCESS


def test_node_that_ends_is_named_with_its_last_words(ros_domain, monkeypatch):
    start = ProcessGroup.start

    def start_failing(self, name, words, **options):
        return start(self, name, ['sh', '-c', f'echo {name} has no wits; exit 3'], **options)

    monkeypatch.setattr(ProcessGroup, 'start', start_failing)
    with pytest.raises(Exception, match='has no wits'), EpisodesOverRos({}, Rates()):
        pass
