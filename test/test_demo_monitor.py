"""The monitor of the demo against a stand-in for the inference node, over DDS."""

import threading
import time

import pytest
from builtin_interfaces.msg import Duration
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from sensor_msgs.msg import JointState
from std_msgs.msg import String
from trajectory_msgs.msg import JointTrajectory

from oxygen_ros.demo.conversation import Act, Step
from oxygen_ros.demo.record import Milestone, Record
from oxygen_ros.msg import EngineStatus, MemoryEntry, TextChunk
from oxygen_ros.nodes.demo_monitor import DemoMonitor
from oxygen_ros.srv import Ask, Cancel, QueryMemory, SetInstruction

WORDS = 'Where is it?'


class StandIn:
    """Answers the services the way the inference node does; the first request gets number 7."""

    def __init__(self, node):
        self.node = node
        self.asked, self.cancelled, self.instructions = [], [], []
        self.speech = node.create_publisher(TextChunk, 'speech', 10)
        for type_, name, answer in ((Ask, 'ask', self.ask), (Cancel, 'cancel', self.cancel),
                                    (QueryMemory, 'query_memory', self.query),
                                    (SetInstruction, 'set_instruction', self.instruct)):
            node.create_service(type_, name, answer)

    def ask(self, request, response):
        self.asked.append(request)
        response.accepted, response.request_id = bool(request.question), 7
        response.message = '' if request.question else 'empty'
        for number, (delta, reason) in enumerate((('on the ', 0), ('table', TextChunk.STOP))):
            self.speech.publish(TextChunk(request_id=7, task='answer', sequence=number, delta=delta, tokens=number + 1,
                                          finish_reason=reason, elapsed=Duration(nanosec=30_000_000)))
        return response

    def cancel(self, request, response):
        self.cancelled.append(request.request_id)
        response.cancelled = [request.request_id]
        return response

    def query(self, request, response):
        response.success, response.entries = True, [MemoryEntry(text='a cup'), MemoryEntry(text='a box')]
        return response

    def instruct(self, request, response):
        self.instructions.append(request.instruction)
        response.accepted = True
        return response


@pytest.fixture
def stand_in(ros_graph):
    return StandIn(ros_graph.node)


@pytest.fixture
def monitor(ros_graph, stand_in):
    with DemoMonitor(Record(started=time.monotonic()), ('test',)) as monitor:
        assert ros_graph.spin_until(lambda: Milestone.NODES in monitor.record.reached)
        assert ros_graph.spin_until(lambda: stand_in.speech.get_subscription_count() == 1)
        assert ros_graph.spin_until(lambda: monitor.services_ready)
        yield monitor


def test_topics_end_up_in_the_record(ros_graph, monitor):
    record, node = monitor.record, ros_graph.node
    messages = [
        (EngineStatus(frames_received=3, state='active'), 'status'), (JointTrajectory(), 'joint_trajectory'),
        (JointState(), 'joint_commands'), (String(data='A cup.'), 'speech/sentences'),
        (MemoryEntry(entry_id=4, text='a cup', count=2), 'memory'),
        (DiagnosticArray(status=[DiagnosticStatus(name='camera', level=DiagnosticStatus.WARN, message='late')]),
         '/diagnostics')]
    for message, topic in messages:
        publisher = node.create_publisher(type(message), topic, 10)
        assert ros_graph.spin_until(lambda publisher=publisher: publisher.get_subscription_count() == 1)
        publisher.publish(message)
    assert ros_graph.spin_until(lambda: record.status and record.chunks and record.commands and record.sentences
                                and record.note and record.diagnostics)
    assert record.status.frames_received == 3 and Milestone.CHUNK in record.reached
    assert list(record.sentences) == ['A cup.'] and (record.note.text, record.note.count) == ('a cup', 2)
    assert record.diagnostics == {'camera': (1, 'late')}


def test_an_answer_is_put_together_from_its_pieces(ros_graph, monitor):
    monitor.act(Step(0.5, Act.ASK, WORDS))
    assert ros_graph.spin_until(lambda: monitor.record.settled and monitor.record.questions[0].accepted)
    answer = monitor.record.answer_of(monitor.record.questions[0])
    assert (answer.text, answer.finish, answer.tokens, answer.first_token) == ('on the table', 'stop', 2, 0.030)


def test_a_refused_question_keeps_the_reason(ros_graph, monitor):
    monitor.act(Step(0.5, Act.ASK, ''))
    question = monitor.record.questions[0]
    assert ros_graph.spin_until(lambda: question.accepted is not None)
    assert question.accepted is False and question.message == 'empty' and monitor.record.settled


def test_a_question_to_be_cancelled_is_cancelled_by_its_number(ros_graph, monitor, stand_in):
    monitor.act(Step(0.5, Act.ASK_AND_CANCEL, WORDS))
    assert ros_graph.spin_until(lambda: monitor.record.questions[0].cancelled is not None)
    assert monitor.record.questions[0].cancelled == [7] == stand_in.cancelled


def test_waiting_for_the_whole_answer_is_asked_for(ros_graph, monitor, stand_in):
    monitor.act(Step(0.5, Act.ASK_AND_WAIT, WORDS))
    assert ros_graph.spin_until(lambda: monitor.record.questions[0].accepted)
    assert stand_in.asked[0].wait and stand_in.asked[0].temperature < 0


def test_instruction_and_memory_are_answered(ros_graph, monitor, stand_in):
    monitor.act(Step(0.5, Act.INSTRUCT, 'Sit.'))
    monitor.query_memory()
    assert ros_graph.spin_until(lambda: monitor.record.memory and monitor.record.instructions[0].accepted)
    assert stand_in.instructions == ['Sit.'] and monitor.record.memory.texts == ('a cup', 'a box')


def test_a_mistake_in_a_callback_reaches_the_main_thread(ros_graph, monitor, stand_in, monkeypatch):
    def broken(*_):
        raise ZeroDivisionError('made up')

    monkeypatch.setattr(monitor.record, 'text', broken)
    stand_in.speech.publish(TextChunk())
    assert ros_graph.spin_until(lambda: not any(thread.name == 'monitor' for thread in threading.enumerate()))
    with pytest.raises(ZeroDivisionError):
        monitor.check()
