"""The voice nodes in a real graph: texts become sound, sound becomes instructions and questions."""

from __future__ import annotations

import importlib.util
import re
import sys
from collections import Counter

import numpy as np
import pytest
from std_msgs.msg import Bool, String
from test_deployment import TOPICS_PAGE, allowed, in_use
from test_voice_lines import SlowVoice

from oxygen_ros.errors import ConfigError
from oxygen_ros.msg import TextChunk
from oxygen_ros.nodes import hear, speak
from oxygen_ros.nodes.bool_state import LATCHED
from oxygen_ros.srv import Ask, Stop
from oxygen_ros.voice.audio import write_wav
from oxygen_ros.voice.phrases import Kind
from oxygen_ros.voice.recogniser import RATE, Heard, Outcome

INSTALLED = all(importlib.util.find_spec(name) for name in ('pocketsphinx', 'espeakng_loader'))
needs_speech = pytest.mark.skipif(not INSTALLED, reason="the optional part speech is not installed: pip install "
                                                         "'oxygen_ros[speech]'")


class Scripted:
    """Takes the place of the recogniser and of the voice activity detection: each block is an utterance."""

    def __init__(self, *heard):
        self.counts, self._heard, self.resets = Counter(), list(heard), 0
        self.may_hear, self.in_speech = True, False

    def push(self, block):
        if not self._heard or not self.may_hear:
            return None
        heard = self._heard.pop(0)
        self.counts[heard.outcome] += 1
        return heard

    def reset(self):
        self.resets += 1


def understood(kind, text):
    return Heard(Outcome.UNDERSTOOD, text, kind, -1.0, 1.0, 0.05)


@pytest.fixture
def listening(ros_graph, monkeypatch, tmp_path):
    """Return a function that makes a node `hear` to which utterances come in a row, one with each block of sound."""
    write_wav(tmp_path / 'sound.wav', np.zeros(30 * RATE, np.int16), RATE)

    def make(*heard, may_hear=True, **parameters):
        scripted = Scripted(*heard)
        scripted.may_hear = may_hear
        monkeypatch.setattr(hear, 'Recogniser', lambda *_: None)
        monkeypatch.setattr(hear, 'Listener', lambda _: scripted)
        node = ros_graph.add(hear.HearNode, wav_files=[str(tmp_path / 'sound.wav')], real_time=True, **parameters)
        monkeypatch.setattr(node, '_finish', lambda: None)
        return scripted

    return make


@pytest.fixture
def model(ros_graph):
    """What the inference node offers, by hand."""
    class Model:
        questions, stops = [], []

        def ask(self, request, response):
            self.questions.append((request.question, request.conversation))
            response.accepted = request.question != 'refuse me'
            response.message = 'too long'
            return response

        def stop(self, request, response):
            self.stops.append(request.cancel_text)
            response.stopped = True
            return response

    model = Model()
    model.questions, model.stops = [], []
    ros_graph.node.create_service(Ask, 'ask', model.ask)
    ros_graph.node.create_service(Stop, 'stop', model.stop)
    model.instructions = ros_graph.listen(String, 'instruction')
    return model


def test_what_was_understood_goes_where_it_belongs(ros_graph, listening, model):
    heard = ros_graph.listen(String, 'heard')
    scripted = listening(understood(Kind.INSTRUCTION, 'go home'), understood(Kind.QUESTION, 'what is leftmost'),
                         Heard(Outcome.UNLIKELY, 'go to the red cube'), Heard(Outcome.NOT_UNDERSTOOD),
                         understood(Kind.STOP, 'stop'))
    assert ros_graph.spin_until(lambda: model.stops)
    ros_graph.spin_for(0.2)
    assert [message.data for message in model.instructions] == ['go home']
    assert model.questions == [('what is leftmost', 'utterance')] and model.stops == [True]
    assert [message.data for message in heard] == ['go home', 'what is leftmost', 'stop']
    assert scripted.counts == {Outcome.UNDERSTOOD: 3, Outcome.UNLIKELY: 1, Outcome.NOT_UNDERSTOOD: 1}


def test_robot_asks_again_when_told_to(ros_graph, listening, model):
    said = ros_graph.listen(String, 'say')
    listening(Heard(Outcome.NOT_UNDERSTOOD), understood(Kind.STOP, 'stop'), reply='pardon')
    assert ros_graph.spin_until(lambda: model.stops)
    assert [message.data for message in said] == ['pardon']


def test_refusal_of_the_model_is_counted(ros_graph, listening, model):
    listening(understood(Kind.QUESTION, 'refuse me'))
    node = ros_graph._nodes[-1]
    assert ros_graph.spin_until(lambda: node._figures()['refused'] == 1)
    assert node._figures()['understood'] == 1 and model.questions == [('refuse me', 'utterance')]


def test_robot_does_not_listen_to_itself(ros_graph, listening, model, monkeypatch):
    monkeypatch.setattr(hear, 'HOLDS', 60.0)
    scripted = listening(understood(Kind.STOP, 'stop'), may_hear=False)
    node = ros_graph._nodes[-1]
    node._robot_speaks(Bool(data=True))
    scripted.may_hear = True
    ros_graph.spin_until(lambda: model.stops, 1.0)
    assert model.stops == [] and scripted.resets == 1
    node._robot_speaks(Bool(data=False))
    assert ros_graph.spin_until(lambda: model.stops) and scripted.resets == 1


def test_robot_that_died_while_it_spoke_is_not_waited_for(ros_graph, listening, model, monkeypatch):
    monkeypatch.setattr(hear, 'HOLDS', 0.2)
    scripted = listening(understood(Kind.STOP, 'stop'), may_hear=False)
    ros_graph._nodes[-1]._robot_speaks(Bool(data=True))
    scripted.may_hear = True
    assert ros_graph.spin_until(lambda: model.stops)


@pytest.fixture
def speaking(ros_graph, monkeypatch, tmp_path):
    """Return a function that makes a node `speak` with a voice that says a word when the test lets it."""
    def make(**parameters):
        voice = SlowVoice()
        monkeypatch.setattr(speak, 'Synthesiser', lambda *_: voice)
        monkeypatch.setattr(speak.WavFolder, 'audible', True)
        ros_graph.add(speak.SpeakNode, wav_folder=str(tmp_path / 'wav'), **parameters)
        publisher = ros_graph.node.create_publisher(TextChunk, 'speech', 10)
        assert ros_graph.spin_until(publisher.get_subscription_count)
        return voice, publisher

    make.lines = lambda: ((tmp_path / 'wav' / 'lines.txt').read_text().splitlines()
                          if (tmp_path / 'wav' / 'lines.txt').exists() else [])
    return make


def test_answer_is_spoken_while_the_executor_goes_on(ros_graph, speaking):
    voice, publisher = speaking()
    told = ros_graph.listen(Bool, 'speaking')
    publisher.publish(TextChunk(request_id=1, task='answer', delta='one two'))
    publisher.publish(TextChunk(request_id=1, task='answer', sequence=1, finish_reason=TextChunk.STOP))
    assert ros_graph.spin_until(lambda: told and told[-1].data)  # it tells, while the voice waits for the test
    voice.steps.release(10)
    assert ros_graph.spin_until(lambda: not told[-1].data)
    assert speaking.lines() == ['0001 one two']


@pytest.mark.parametrize('reason', [TextChunk.SUPERSEDED, TextChunk.CANCELLED])
def test_text_that_is_taken_back_is_not_spoken_to_its_end(ros_graph, speaking, reason):
    voice, publisher = speaking()
    told = ros_graph.listen(Bool, 'speaking')
    publisher.publish(TextChunk(request_id=1, task='answer', delta='one two three. and '))
    assert ros_graph.spin_until(lambda: told and told[-1].data)
    publisher.publish(TextChunk(request_id=1, task='answer', sequence=1, delta='more.', finish_reason=reason))
    ros_graph.spin_until(lambda: not ros_graph._nodes[-1]._queue.wanted())
    voice.steps.release(10)
    assert ros_graph.spin_until(lambda: not told[-1].data)
    assert speaking.lines() == ['0001 one two three. ...']


def test_other_nodes_may_have_a_line_said(ros_graph, speaking):
    voice, _ = speaking(tasks=['answer'])
    voice.steps.release(10)
    publisher = ros_graph.node.create_publisher(String, 'say', 10)
    assert ros_graph.spin_until(publisher.get_subscription_count)
    publisher.publish(String(data='  '))
    publisher.publish(String(data=' pardon '))
    assert ros_graph.spin_until(lambda: speaking.lines() == ['0001 pardon'])


def test_robot_waits_until_a_person_has_spoken(ros_graph, listening, speaking, monkeypatch):
    monkeypatch.setattr(speak, 'HOLDS', 60.0)
    voice, publisher = speaking()
    voice.steps.release(10)
    scripted = listening()
    hearing = ros_graph.listen(Bool, 'hearing', LATCHED)
    scripted.in_speech = True
    assert ros_graph.spin_until(lambda: hearing and hearing[-1].data)
    publisher.publish(TextChunk(request_id=1, task='answer', delta='yes', finish_reason=TextChunk.STOP))
    ros_graph.spin_for(0.5)
    assert speaking.lines() == []
    scripted.in_speech = False
    assert ros_graph.spin_until(lambda: speaking.lines() == ['0001 yes'])


def test_policy_and_topics_page_name_what_the_voice_nodes_have(ros_graph, listening, speaking):
    listening(use_sim_time=True)
    speaking(use_sim_time=True)
    for node in ('hear', 'speak'):
        assert ros_graph.spin_until(
            lambda: ('reply', f'/{node}/list_parameters') in in_use(ros_graph.node, node))  # noqa: B023
        used = in_use(ros_graph.node, node)
        assert used <= allowed(node)
        for _, name in used:
            word = name.removeprefix('/')
            assert f'`{word}`' in TOPICS_PAGE or f'`/{word}`' in TOPICS_PAGE or re.search(
                r'rosout|parameter|type_description|clock', name), name


def test_missing_parts_are_named_with_the_remedy(ros_graph, monkeypatch):
    for name in ('pocketsphinx', 'sounddevice'):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=r"pocketsphinx: install it with pip install 'oxygen_ros\[speech\]'"):
        ros_graph.add(hear.HearNode)
    monkeypatch.setattr(speak, 'Synthesiser', lambda *_: SlowVoice())
    with pytest.raises(ConfigError, match='a loudspeaker needs the Python package sounddevice'):
        ros_graph.add(speak.SpeakNode)


@needs_speech
def test_spoken_question_and_instruction_come_from_sound(ros_graph, model, tmp_path):
    from oxygen_ros.voice.audio import resample
    from oxygen_ros.voice.synthesiser import Synthesiser
    voice = Synthesiser()
    files = []
    for text in ('point at the red cube', 'where is the yellow cube'):
        files.append(str(tmp_path / f'{len(files)}.wav'))
        write_wav(files[-1], resample(voice.samples(text) // 2, voice.rate, RATE), RATE)
    process = ros_graph.start('hear', '--wav', *files, '-p', 'real_time:=false')
    assert ros_graph.spin_until(lambda: process.poll() is not None, 60.0)
    assert process.returncode == 0, process.communicate()
    assert [message.data for message in model.instructions] == ['point at the red cube']
    assert model.questions == [('where is the yellow cube', 'utterance')]
    assert '2 understood, 0 not understood' in process.communicate()[1]
