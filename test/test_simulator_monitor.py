"""The monitor of the demo in the simulator: what comes over ROS is judged and shown. A node stands in for the suite."""

from __future__ import annotations

import json
import time

import numpy as np
import pytest
from demo_truth import CUBE, SECOND, truth
from sensor_msgs.msg import Image
from std_msgs.msg import Header, String

from oxygen_ros.demo.conversation import Act, Step
from oxygen_ros.demo.events import Kind, Verdict
from oxygen_ros.demo.film import Film
from oxygen_ros.demo.ledger import Ledger
from oxygen_ros.demo.record import Milestone, Record
from oxygen_ros.msg import MemoryEntry, TextChunk
from oxygen_ros.nodes.conversion import image_to_msg, time_to_msg
from oxygen_ros.nodes.simulator import truth_to_dict
from oxygen_ros.nodes.simulator_monitor import SimulatorMonitor, truth_from_dict
from oxygen_ros.srv import Ask, Cancel, QueryMemory, SetInstruction, Stop

NOW_NS = 5 * SECOND


class StandIn:
    """Answers questions rightly, refuses to dance, and remembers one note."""

    def __init__(self, node):
        self.speech = node.create_publisher(TextChunk, 'speech', 10)
        self.memory = node.create_publisher(MemoryEntry, 'memory', 10)
        self.truth = node.create_publisher(String, 'truth', 10)
        self.view = node.create_publisher(Image, 'view', 10)
        self.head = node.create_publisher(Image, '/camera/head/image_raw', 10)
        self.header = Header(stamp=time_to_msg(NOW_NS))
        self.early = False  # the answer comes before the response that names it
        for service, name, answer in ((Ask, 'ask', self.ask), (Cancel, 'cancel', None),
                                      (SetInstruction, 'set_instruction', self.instruct), (Stop, 'stop', self.stop),
                                      (QueryMemory, 'query_memory', self.query)):
            node.create_service(service, name, answer or (lambda _, response: response))
        self.node = node

    def ask(self, request, response):
        response.accepted, response.request_id = True, 9
        if self.early:
            self.answer()
            time.sleep(0.3)
        return response

    def answer(self):
        for delta, finish in (('near ', TextChunk.NOT_FINISHED), ('left', TextChunk.STOP)):
            self.speech.publish(TextChunk(header=self.header, request_id=9, task='answer', delta=delta, tokens=1,
                                          finish_reason=finish))

    def instruct(self, request, response):
        response.accepted = request.instruction != 'dance'
        response.message = '' if response.accepted else 'I do not dance'
        return response

    def stop(self, request, response):
        response.stopped, response.message = True, 'the robot holds'
        return response

    def query(self, request, response):
        response.success = True
        response.entries = [MemoryEntry(header=self.header, text='red cube near left', count=3)]
        return response


@pytest.fixture
def stand_in(ros_graph):
    return StandIn(ros_graph.node)


@pytest.fixture
def monitor(ros_graph, stand_in):
    monitor = SimulatorMonitor(Record(started=time.monotonic()), ('test',), Ledger('rest'), Film(10.0))
    with monitor:
        assert ros_graph.spin_until(lambda: Milestone.NODES in monitor.record.reached and monitor.services_ready)
        assert ros_graph.spin_until(lambda: all(publisher.get_subscription_count() == 1 for publisher in (
            stand_in.speech, stand_in.memory, stand_in.truth, stand_in.view, stand_in.head)))
        monitor._ledger.take_truth(NOW_NS, truth(objects=(CUBE,)), 0.0)
        yield monitor


def events_of(monitor, kind):
    with monitor.record.lock:
        return [(event.text, event.verdict) for event in monitor._ledger.events if event.kind is kind]


@pytest.mark.parametrize('early', [False, True], ids=['response first', 'answer first'])
def test_an_answer_is_judged_once_whichever_comes_first(ros_graph, monitor, stand_in, early):
    stand_in.early = early
    monitor.act(Step(0.0, Act.ASK, 'where is the red cube'))
    assert ros_graph.spin_until(lambda: monitor.record.questions[0].accepted)
    if not early:
        stand_in.answer()
    assert ros_graph.spin_until(lambda: events_of(monitor, Kind.ANSWERED))
    assert events_of(monitor, Kind.ASKED) == [('where is the red cube', Verdict.OPEN)]
    assert events_of(monitor, Kind.ANSWERED) == [('near left', Verdict.TRUE)]


def test_lines_and_notes_are_judged_by_the_stamp_of_their_frame(ros_graph, monitor, stand_in):
    for request_id, line in enumerate(('i rest', 'i go home'), start=1):
        stand_in.speech.publish(TextChunk(header=stand_in.header, request_id=request_id, task='speech', delta=line,
                                          finish_reason=TextChunk.STOP))
    for text, count in (('red cube near left', 1), ('red cube near left', 2), ('nothing', 1)):
        stand_in.memory.publish(MemoryEntry(header=stand_in.header, text=text, count=count))
    assert ros_graph.spin_until(lambda: len(monitor._ledger.facts) == 3 and len(events_of(monitor, Kind.SAID)) == 2)
    assert events_of(monitor, Kind.SAID) == [('i rest', Verdict.TRUE), ('i go home', Verdict.FALSE)]
    assert events_of(monitor, Kind.NOTED) == [('red cube near left', Verdict.TRUE), ('nothing', Verdict.FALSE)]


def test_what_others_tell_and_ask_aloud_is_judged_too(ros_graph, monitor, stand_in):
    publish = {topic: ros_graph.node.create_publisher(String, topic, 10) for topic in ('heard', 'instruction')}
    assert ros_graph.spin_until(lambda: all(publisher.get_subscription_count() for publisher in publish.values()))
    for text in ('go to the red cube', 'stop', 'where is the red cube'):
        publish['heard'].publish(String(data=text))
    publish['instruction'].publish(String(data='go to the red cube'))
    assert ros_graph.spin_until(lambda: monitor._utterances and events_of(monitor, Kind.TOLD))
    stand_in.speech.publish(TextChunk(header=stand_in.header, request_id=12, task='answer', conversation='utterance',
                                      delta='far left', finish_reason=TextChunk.STOP))
    assert ros_graph.spin_until(lambda: events_of(monitor, Kind.ANSWERED))
    assert events_of(monitor, Kind.TOLD) == [('go to the red cube', Verdict.OPEN)]
    assert events_of(monitor, Kind.ASKED) == [('where is the red cube', Verdict.OPEN)]
    assert events_of(monitor, Kind.ANSWERED) == [('far left', Verdict.FALSE)]


def test_instructions_stops_and_memory_become_events(ros_graph, monitor, stand_in):
    monitor.act(Step(0.0, Act.INSTRUCT, 'go to the red cube'))
    assert ros_graph.spin_until(lambda: events_of(monitor, Kind.TOLD))
    monitor.act(Step(0.0, Act.INSTRUCT, 'dance'))
    assert ros_graph.spin_until(lambda: events_of(monitor, Kind.INFORMED))
    monitor.stop()
    monitor.recall('red cube')
    assert ros_graph.spin_until(lambda: monitor._ledger.stopped and events_of(monitor, Kind.RECALLED))
    assert [text for text, _ in events_of(monitor, Kind.TOLD)] == ['go to the red cube']
    assert [text for text, _ in events_of(monitor, Kind.INFORMED)] == ['refused: I do not dance', 'the robot holds']
    assert events_of(monitor, Kind.RECALLED) == [('red cube near left', Verdict.TRUE)]


def test_pictures_and_truth_come_from_the_topics(ros_graph, monitor, stand_in):
    class Pretended:
        seed = 4

        def truth(self):
            return truth(CUBE.point_above, from_rest=0.5)

    picture = np.full((480, 640, 3), 77, np.uint8)
    stand_in.view.publish(image_to_msg(picture, NOW_NS))
    stand_in.head.publish(image_to_msg(np.zeros((112, 112, 3), np.uint8), NOW_NS))
    values = truth_to_dict(Pretended(), 6 * SECOND)
    stamp_ns, there = truth_from_dict(values)
    assert (stamp_ns, there.from_rest, there.objects) == (6 * SECOND, 0.5, truth().objects)
    assert np.array_equal(there.fingertips['left'], CUBE.point_above)
    stand_in.truth.publish(String(data=json.dumps(values)))
    assert ros_graph.spin_until(lambda: monitor._ledger.now_ns == 6 * SECOND and monitor._film.newest is not None)
    assert np.array_equal(monitor._film.newest, picture)
