"""What anybody in the domain may send is bounded: refused in one line that names the value and the remedy, or cut."""

import array
import math

import numpy as np
import pytest
from diagnostic_msgs.msg import DiagnosticArray
from inference_life import Life
from std_msgs.msg import String

from oxygen_ros.engine.requests import LONGEST_INSTRUCTION, TextRequest, instruction_problem
from oxygen_ros.errors import ConfigError
from oxygen_ros.memory.store import MemoryStore
from oxygen_ros.nodes.conversion import frame_to_msg, observation_from_msg
from oxygen_ros.nodes.remote_text import shown
from oxygen_ros.observation import Observation
from oxygen_ros.perception.inputs import PARAMETERS, read_inputs
from oxygen_ros.perception.sync_options import MAX_CAMERAS
from oxygen_ros.srv import QueryMemory, SetInstruction, Stop


def frame(images, joints=1):
    names = tuple(f'joint {number}' for number in range(joints))
    return frame_to_msg(Observation(7, 1, images, names, np.zeros(joints)))


@pytest.mark.parametrize('message, words', [
    (lambda: frame({f'c{n}': np.zeros((1, 1, 3), np.uint8) for n in range(MAX_CAMERAS + 1)}),
     '33 pictures, at most 32'),
    (lambda: frame({}, joints=1025), '1025 joints, at most 1024')])
def test_frames_beyond_what_any_robot_has_are_refused(message, words):
    with pytest.raises(ValueError, match=f'frame 7: {words}'):
        observation_from_msg(message())


def test_size_of_pictures_counts_before_their_data_are_touched():
    message = frame({'head': np.zeros((2, 2, 3), np.uint8), 'front': np.zeros((2, 2, 3), np.uint8)})
    for image in message.images:  # each would do alone
        image.height, image.width, image.data = 4097, 4096, array.array('B')
    with pytest.raises(ValueError, match='33562624 pixels in all pictures, at most 33554432 are taken: set image_'):
        observation_from_msg(message)


def test_more_cameras_than_a_frame_holds_are_refused_at_the_start():
    names = tuple(f'c{number}' for number in range(MAX_CAMERAS + 1))
    values = {**{each.name: each.default for each in PARAMETERS}, 'cameras': names, 'camera_topics': names}
    with pytest.raises(ConfigError, match='33 names, a frame holds at most 32: name fewer'):
        read_inputs(values)


def test_pictures_of_a_query_end_where_a_response_is_full(tmp_path):
    with MemoryStore(tmp_path / 'memory.db') as store:
        for number, size in enumerate((300, 0, 300, 500, 300)):
            store.add(f'note {number}', number, number, thumbnail=b'x' * size)
        entries = store.with_pictures(store.query(), 800)
        assert [len(entry.thumbnail) for entry in entries] == [300, 500, 0, 0, 0]
        assert [entry.picture_left_out for entry in entries] == [False, False, True, False, True]
        assert store.with_pictures([], 800) == []


def test_texts_of_others_cannot_pass_for_lines_of_the_log():
    assert shown('grüße, 机器人 – “ok”') == 'grüße, 机器人 – “ok”'
    assert shown('a\n[ERROR] b\r\x1b[2J\u202e\0') == r'a\n[ERROR] b\r\x1b[2J\u202e\x00'
    assert shown('x' * 1000) == 'x' * 200 + '... (1000 characters)'
    assert shown(shown('\n', 10), 10) == r'\n'


@pytest.mark.parametrize('text, words', [
    (' \n', 'is empty'), ('x' * LONGEST_INSTRUCTION, ''),
    ('x' * (LONGEST_INSTRUCTION + 1), '4001 characters, at most 4000')])
def test_instructions_have_a_length(text, words):
    assert words in instruction_problem(text) and bool(words) == bool(instruction_problem(text))


def test_conversations_have_short_names():
    TextRequest(1, 'answer', conversation='x' * 100)
    with pytest.raises(ValueError, match='101 characters, at most 100'):
        TextRequest(1, 'answer', conversation='x' * 101)


def test_calls_with_values_beyond_all_bounds_are_refused_and_the_node_goes_on(ros_graph, tmp_path, monkeypatch):
    life = Life(ros_graph, tmp_path, **{'memory.thumbnail': 16}).start()
    life.see()
    for fields, words in (({'timeout': math.inf}, 'timeout inf'), ({'timeout': math.nan}, 'timeout nan'),
                          ({'timeout': -1.0}, 'timeout -1'), ({'timeout': 3601.0}, 'at most 3600 seconds'),
                          ({'conversation': 'x' * 101}, '101 characters')):
        answer = life.result(life.ask('what?', **fields))
        assert not answer.accepted and words in answer.message
    read = []
    monkeypatch.setattr('oxygen_ros.memory.recall.key_words', lambda question: read.append(question) or [])
    life.node.memory.recall('word ' * 100_000, 3).result(10)
    assert max(map(len, read)) == 2000
    answer = life.result(life.ask('x' * 100_000))
    assert not answer.accepted and '100000 characters' in answer.message

    instruct = life.client(SetInstruction, 'set_instruction')
    answer = life.result(instruct.call_async(SetInstruction.Request(instruction='x' * 4001)))
    assert not answer.accepted and '4001 characters' in answer.message
    topic = life.graph.node.create_publisher(String, 'instruction', 5)
    assert life.graph.spin_until(topic.get_subscription_count)
    before = life.node.instruction
    topic.publish(String(data='x' * 4001))
    assert life.graph.spin_until(lambda: life.node.diagnostics._ignored['ignored_instructions'] == 1)
    assert life.node.instruction == before

    query = life.client(QueryMemory, 'query_memory')
    answer = life.result(query.call_async(QueryMemory.Request(words='x' * 4001)))
    assert not answer.success and '4001 characters are too many' in answer.message
    monkeypatch.setattr('oxygen_ros.memory.store.MemoryStore.with_pictures.__defaults__', (1000,))
    for number in range(3):
        life.node.memory.add(f'note {number}', number, number, image=np.zeros((64, 64, 3), np.uint8)).result(10)
    answer = life.result(query.call_async(QueryMemory.Request(with_thumbnails=True)))
    pictures = [len(entry.thumbnail.data) for entry in answer.entries]
    assert len(pictures) == 3 and pictures[0] and sum(pictures) <= 1000 and not pictures[2]
    assert f'{pictures.count(0)} pictures are left out' in answer.message
    assert life.result(life.ask('what?', timeout=3600.0)).accepted


def test_reasons_and_instructions_are_shown_short_and_on_one_line(ros_graph, tmp_path, capfd):
    life = Life(ros_graph, tmp_path).start()
    diagnostics = life.graph.listen(DiagnosticArray, '/diagnostics', 100)
    instruct = life.client(SetInstruction, 'set_instruction')
    assert life.result(instruct.call_async(SetInstruction.Request(instruction='go\nhome ' * 400))).accepted
    stop = life.client(Stop, 'stop')
    reason = 'tired\n[ERROR] [1.0] [inference]: the robot is on fire\x1b[2J' + 'x' * 1000
    assert life.result(stop.call_async(Stop.Request(reason=reason))).stopped
    said, = [line for line in capfd.readouterr().err.splitlines() if 'stopped: ' in line]
    assert r'tired\n[ERROR]' in said and 'on fire' in said and '\x1b[2J' not in said and len(said) < 400

    def told():
        return [pair.value for array in diagnostics for status in array.status for pair in status.values
                if pair.key == 'instruction' and pair.value.startswith('go')]

    assert life.graph.spin_until(told)
    assert len(told()[0]) < 500 and '\n' not in told()[0]
