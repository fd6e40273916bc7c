"""Texts of a real inference node: every word arrives, every text ends, and a service call waits for no model."""

import json
import os
import threading
from pathlib import Path

import pytest
from geometry_msgs.msg import PoseStamped
from inference_life import Life
from lifecycle_msgs.msg import State
from rclpy.serialization import deserialize_message
from std_msgs.msg import String

from oxygen_ros.msg import MemoryEntry, TextChunk
from oxygen_ros.replay.bag import Bag
from oxygen_ros.srv import Ask, Cancel, QueryMemory

CASES = Path(__file__).parent / 'data' / 'cases'


@pytest.fixture
def life(ros_graph, tmp_path):
    return Life(ros_graph, tmp_path)


def recorded_utterances():
    with Bag(CASES / '61-utterances-roundtrip' / 'bag') as bag:
        return [deserialize_message(bytes(message.data), String).data for message in bag.messages()]


def test_any_words_arrive_as_they_were_said_and_blank_ones_are_counted(life):
    texts = json.loads((CASES / '61-utterances-roundtrip' / 'utterances.json').read_text())
    assert recorded_utterances() == texts
    life.start()
    asked = []
    opened = life.node.texts.open.opened
    life.node.texts.open.opened = lambda request: (asked.append(request.text), opened(request))
    instructions = life.graph.node.create_publisher(String, 'instruction', 50)
    life.graph.spin_until(instructions.get_subscription_count)
    told, set_instruction = [], life.node.set_instruction
    life.node.set_instruction = lambda text: (told.append(text), set_instruction(text))
    for text in texts:
        life.utterances.publish(String(data=text))
        instructions.publish(String(data=text))
        life.graph.spin_for(0.05)
    wanted = [text for text in texts if text.strip()]
    assert life.graph.spin_until(lambda: len(asked) == len(told) == len(wanted))
    ignored = life.node.diagnostics._ignored
    assert life.graph.spin_until(lambda: sum(ignored.values()) == 4)
    assert [text.encode() for text in asked] == [text.encode() for text in told] == [text.encode() for text in wanted]
    assert life.node.active


def test_new_utterance_supersedes_and_the_parameter_says_otherwise(ros_graph, tmp_path):
    life = Life(ros_graph, tmp_path, **{'answer.max_tokens': 900}).start()
    life.see()
    life.utterances.publish(String(data='one'))
    assert ros_graph.spin_until(lambda: life.speech)
    life.utterances.publish(String(data='two'))
    assert ros_graph.spin_until(lambda: 1 in life.ends())
    assert life.ends()[1].finish_reason == TextChunk.SUPERSEDED and life.ends()[1].conversation == 'utterance'
    answer = life.result(life.ask('three', conversation='utterance', barge_in=Ask.Request.BARGE_IN_QUEUE))
    assert answer.accepted and 2 not in life.ends()
    refused = life.result(life.ask('four', barge_in=9))
    assert not refused.accepted and 'barge_in 9' in refused.message


def test_cancel_takes_one_or_all_and_says_when_an_id_is_unknown(life):
    life.start().see()
    ids = [life.result(life.ask(text, max_tokens=900)).request_id for text in ('one', 'two', 'three')]
    cancel = life.client(Cancel, 'cancel')
    assert life.graph.spin_until(lambda: {piece.request_id for piece in life.speech} == set(ids))
    answer = life.result(cancel.call_async(Cancel.Request(request_id=ids[1])))
    assert list(answer.cancelled) == [ids[1]] and answer.message == 'cancelled 1'
    for unknown in (ids[1], 999):
        answer = life.result(cancel.call_async(Cancel.Request(request_id=unknown)))
        assert not answer.cancelled and f'{unknown} neither waits nor runs' in answer.message
    assert sorted(life.result(cancel.call_async(Cancel.Request())).cancelled) == [ids[0], ids[2]]
    assert life.graph.spin_until(lambda: set(life.ends()) == set(ids))
    assert {piece.finish_reason for piece in life.ends().values()} == {TextChunk.CANCELLED}
    assert life.node.session.engine.status().running == 0


def test_services_answer_while_a_stage_of_the_model_takes_long(life):
    """Case 94: the calls are answered before the one stage that runs has come to its end."""
    life.start()
    model, hold, held = life.node.session.engine.model, threading.Event(), threading.Event()
    prefill = model.prefill

    def slow(*arguments):
        held.set()
        hold.wait(60)
        prefill(*arguments)

    model.prefill = slow
    life.ask('what?')
    life.see()
    assert life.graph.spin_until(held.is_set)
    case = json.loads((CASES / '94-service-called-while-inference-runs' / 'case.json').read_text())
    query = life.client(QueryMemory, 'query_memory')
    for number in range(case['expected']['repetitions']):
        life.node.memory.add(f'note {number}', number, number)
        answer = life.result(query.call_async(QueryMemory.Request(words=str(number))))
        assert answer.success and answer.entries[0].text == f'note {number}'
    assert not hold.is_set()
    hold.set()
    assert life.graph.spin_until(life.ends)


def test_every_text_ends_when_the_engine_fails(ros_graph, tmp_path):
    life = Life(ros_graph, tmp_path, max_branches=2, **{'answer.barge_in': 'queue'}).start()
    life.see()
    waits = life.ask('one', max_tokens=900, wait=True)
    life.utterances.publish(String(data='two'))
    ros_graph.spin_until(lambda: {piece.request_id for piece in life.speech} >= {1, 2})
    life.utterances.publish(String(data='three'))  # waits for the one before
    assert ros_graph.spin_until(lambda: len(life.node.texts.open._last) == 3)

    def fail(engine):
        raise RuntimeError('a fault of the test')

    life.node.worker.post(fail)
    answer = life.result(waits)
    assert (answer.finish_reason, answer.message) == (TextChunk.ERROR, 'the engine has failed')
    assert ros_graph.spin_until(lambda: set(life.ends()) == {1, 2, 3})
    assert {(piece.finish_reason, piece.message) for piece in life.ends().values()} == {
        (TextChunk.ERROR, 'the engine has failed')}
    for number in (1, 2, 3):
        pieces = [piece.sequence for piece in life.speech if piece.request_id == number]
        assert pieces == list(range(len(pieces)))
    assert ros_graph.spin_until(lambda: life.node.session is None)
    life.start().see()  # and it can begin anew
    assert life.result(life.ask('again', wait=True)).finish_reason in (TextChunk.STOP, TextChunk.LENGTH)


def test_request_that_breaks_the_engine_ends_alone(life):
    life.start().see()
    engine = life.node.session.engine
    submit = engine.submit

    def broken(request):
        if request.text == 'poison':
            raise KeyError('poison')
        submit(request)

    engine.submit = broken
    life.utterances.publish(String(data='poison'))
    assert life.graph.spin_until(life.ends)
    piece, = life.ends().values()
    assert piece.finish_reason == TextChunk.ERROR and 'poison' in piece.message
    assert life.node.worker.alive
    assert life.result(life.ask('next', wait=True)).accepted


def test_transition_that_goes_wrong_frees_everything_and_can_be_made_again(life, monkeypatch):
    life.node.trigger_configure()
    monkeypatch.setattr(life.node._task_timers, 'start', lambda: 1 / 0)
    life.node.trigger_activate()
    assert life.node.session is None and life.node.worker is None and not life.node.active
    assert life.node._state_machine.current_state[0] == State.PRIMARY_STATE_UNCONFIGURED
    monkeypatch.undo()
    life.start()


def test_trace_file_is_closed_when_the_rest_cannot_be_configured(ros_graph, tmp_path):
    life = Life(ros_graph, tmp_path, trace_file=str(tmp_path / 'trace.json'), kv_budget_mib=0.1)
    life.node.trigger_configure()
    assert life.node.session is None and (tmp_path / 'trace.json').exists()
    links = [os.readlink(f'/proc/self/fd/{name}') for name in os.listdir('/proc/self/fd')
             if os.path.islink(f'/proc/self/fd/{name}')]
    assert str(tmp_path / 'trace.json') not in links


def test_note_is_published_with_picture_and_pose(ros_graph, tmp_path):
    life = Life(ros_graph, tmp_path, **{'memory.rate': 10.0, 'memory.max_tokens': 3, 'memory.pose_topic': 'pose',
                                        'memory.thumbnail': 16})
    entries = ros_graph.listen(MemoryEntry, 'memory')
    poses = ros_graph.node.create_publisher(PoseStamped, 'pose', 10)
    life.start()
    assert ros_graph.spin_until(poses.get_subscription_count)
    message = PoseStamped()
    message.header.frame_id, message.pose.position.x = 'map', 1.5
    message.header.stamp = ros_graph.node.get_clock().now().to_msg()
    poses.publish(message)
    ros_graph.spin_for(0.2)
    life.see()
    assert ros_graph.spin_until(lambda: entries)
    entry = entries[0]
    assert entry.pose.header.frame_id == 'map' and entry.pose.pose.position.x == 1.5
    assert entry.thumbnail.format == 'jpeg' and bytes(entry.thumbnail.data[:2]) == b'\xff\xd8'
    query = life.client(QueryMemory, 'query_memory')
    slim, full = (life.result(query.call_async(QueryMemory.Request(with_thumbnails=wanted))).entries[-1]
                  for wanted in (False, True))
    assert not slim.thumbnail.data and full.thumbnail.data
    refused = life.result(query.call_async(QueryMemory.Request(words='cup', by_meaning=True)))
    assert not refused.success and 'memory.embedding' in refused.message
