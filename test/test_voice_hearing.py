"""What is understood of speech: the grammar holds the task language, guesses are counted as such, sound is cut well."""

from __future__ import annotations

import math
import wave

import numpy as np
import pytest

from oxygen_ros.cli import main
from oxygen_ros.errors import ConfigError
from oxygen_ros.simulation import language
from oxygen_ros.simulation.scene import sample_scene
from oxygen_ros.voice.audio import BLOCK, blocks, read_wav, resample, write_wav
from oxygen_ros.voice.phrases import Kind, Phrases, load_phrases, task_phrases
from oxygen_ros.voice.recogniser import RATE, Outcome, _Segment, confidence_of, left_out

WHY = "the optional part speech is not installed: pip install 'oxygen_ros[speech]'"


# -- phrases -----------------------------------------------------------------------------------------------------------

def test_every_instruction_and_question_of_the_task_language_can_be_said():
    phrases, random = task_phrases(), np.random.default_rng(0)
    asked = set()
    for _ in range(60):
        objects = sample_scene(random).objects
        for question in language.draw_questions(random, objects):
            assert phrases.kind(question.question) is Kind.QUESTION, question.question
            asked.add(question.kind)
    assert asked == set(language.QUESTION_KINDS)
    for name in language.NAMES:
        for template in language.REACH_INSTRUCTIONS:
            assert phrases.kind(template.format(name)) is Kind.INSTRUCTION
    assert all(phrases.kind(text) is Kind.INSTRUCTION for text in language.REST_INSTRUCTIONS)


def test_words_are_those_that_the_policy_knows():
    assert task_phrases().words() - {'stop'} <= set(language.vocabulary())


@pytest.mark.parametrize('text', ['', 'point at the', 'point at the red', 'point at the red cube now', 'go', 'red cube',
                                  'is there a red', 'what colour is the red cube', 'where is the cube'])
def test_part_of_a_phrase_is_no_phrase(text):
    assert task_phrases().kind(text) is None


def test_grammar_is_jsgf_with_a_rule_per_slot():
    phrases = Phrases({Kind.INSTRUCTION: ('take the {thing}', 'wait'), Kind.QUESTION: ('how many {thing}',)},
                      {'thing': ('cup', 'tea pot')})
    assert phrases.grammar() == ('#JSGF V1.0;\ngrammar oxygen;\n<thing> = cup | tea pot;\n'
                                 'public <utterance> = (take the <thing> | wait | how many <thing>);\n')
    assert phrases.words() == {'take', 'the', 'cup', 'tea', 'pot', 'wait', 'how', 'many'}
    assert phrases.kind('take the tea pot') is Kind.INSTRUCTION and phrases.kind('take the tea') is None


def test_wake_word_is_optional_in_the_grammar_and_split_off():
    phrases = task_phrases('hey robot')
    assert '<wake> = hey robot;\npublic <utterance> = [<wake>] (' in phrases.grammar()
    assert phrases.split_wake_word('hey robot go home') == (True, 'go home')
    assert phrases.split_wake_word('go home') == (False, 'go home')
    assert phrases.split_wake_word('hey robots go home') == (False, 'hey robots go home')
    assert task_phrases().split_wake_word('go home') == (True, 'go home')


def test_phrases_come_from_a_file(tmp_path):
    path = tmp_path / 'phrases.yaml'
    path.write_text('instructions: ["bring the {what}"]\nquestions: ["who are you"]\nslots: {what: [tea, coffee]}\n'
                    'pronunciations: {coffee: K AA F IY}\n')
    phrases = load_phrases(str(path), 'robot')
    assert phrases.kind('bring the tea') is Kind.INSTRUCTION and phrases.kind('who are you') is Kind.QUESTION
    assert phrases.pronunciations == {'coffee': 'K AA F IY'} and phrases.wake_word == 'robot'


@pytest.mark.parametrize(('content', 'wanted'), [
    ('instructions: ["take {it}"]', "'take {it}' has a slot 'it' that is not among []"),
    ('instructions: ["Take it"]', "'Take it' is not lower case words"),
    ('instructions: ["take (it"]', "'take (it' is not lower case words"),
    ('questions: ["is {it}"]\nslots: {it: []}', "slot 'it' is empty"),
    ('questions: [no]', 'must be a list of texts'),
    ('slots: {}', 'there is no phrase'),
    ('orders: [go]', "not ['orders']"),
    ('- go', 'is a YAML file with'),
    ('{', 'cannot be read')])
def test_file_that_holds_no_phrases_is_refused_in_words(tmp_path, content, wanted):
    path = tmp_path / 'phrases.yaml'
    path.write_text(content)
    with pytest.raises(ConfigError) as failure:
        load_phrases(str(path))
    assert wanted in str(failure.value)


# -- confidence --------------------------------------------------------------------------------------------------------

def test_words_that_fit_as_well_as_any_phones_are_certain():
    words = [_Segment('<sil>', 0, 9, -10.0), _Segment('go', 10, 29, -20.0)]
    phones = [_Segment('SIL', 0, 9, -10.0), _Segment('G', 10, 19, -10.0), _Segment('OW', 20, 29, -10.0)]
    assert confidence_of(words, phones) == 0.0


def test_words_that_fit_worse_are_less_certain_per_frame():
    words = [_Segment('go', 0, 9, -30.0), _Segment('<sil>', 10, 19, -10.0)]
    phones = [_Segment('G', 0, 9, -10.0), _Segment('SIL', 10, 19, -10.0)]
    assert confidence_of(words, phones) == -1.0


def test_speech_that_the_words_leave_out_is_noticed():
    words = [_Segment('<sil>', 0, 29, 0.0), _Segment('go', 30, 59, 0.0), _Segment('<sil>', 60, 99, 0.0)]
    phones = [_Segment('SIL', 0, 19, 0.0), _Segment('AA', 20, 39, 0.0), _Segment('B', 40, 89, 0.0),
              _Segment('SIL', 90, 99, 0.0)]
    assert left_out(words, phones) == 0.4


def test_nothing_but_silence_is_never_certain():
    assert confidence_of([_Segment('<sil>', 0, 9, -1.0)], [_Segment('SIL', 0, 9, -1.0)]) == -math.inf


# -- sound -------------------------------------------------------------------------------------------------------------

def tone(hertz: float, rate: int, seconds: float = 0.5) -> np.ndarray:
    return np.rint(10000 * np.sin(2 * np.pi * hertz * np.arange(round(rate * seconds)) / rate)).astype(np.int16)


@pytest.mark.parametrize('rate', [8000, 22050, 44100, 48000])
def test_tone_keeps_its_height_at_another_rate(rate):
    changed = resample(tone(1000, rate), rate, RATE)
    inside = slice(1000, -1000)  # the ends ring
    assert np.abs(changed[inside].astype(int) - tone(1000, RATE)[inside]).max() < 200


def test_tone_that_the_rate_cannot_hold_is_gone():
    assert np.abs(resample(tone(10000, 48000), 48000, RATE)[1000:-1000]).max() < 100


def test_wav_file_of_two_channels_is_read_as_one(tmp_path):
    with wave.open(str(tmp_path / 'a.wav'), 'wb') as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(RATE)
        file.writeframes(np.array([[100, 300], [-30000, -32000]], '<i2').tobytes())
    assert read_wav(tmp_path / 'a.wav').tolist() == [200, -31000]


def test_wav_file_that_cannot_be_heard_is_refused(tmp_path):
    (tmp_path / 'text.wav').write_text('no sound')
    with wave.open(str(tmp_path / 'bytes.wav'), 'wb') as file:
        file.setnchannels(1)
        file.setsampwidth(1)
        file.setframerate(RATE)
        file.writeframes(b'123')
    for name, wanted in (('text.wav', 'cannot be read'), ('bytes.wav', '8 bits per sample'),
                         ('no.wav', 'cannot be read')):
        with pytest.raises(ConfigError, match=wanted):
            read_wav(tmp_path / name)


def test_blocks_hold_the_sound_and_the_silence_after_it():
    cut = list(blocks(np.ones(BLOCK + 1, np.int16), silence=0.03))
    assert [len(block) for block in cut] == [BLOCK] * 3
    assert np.concatenate(cut).sum() == BLOCK + 1


# -- voice and recogniser together -------------------------------------------------------------------------------------

@pytest.fixture(scope='module')
def synthesiser():
    from oxygen_ros.voice.synthesiser import Synthesiser
    try:
        return Synthesiser()
    except ConfigError:
        pytest.skip(WHY)


@pytest.fixture(scope='module')
def recogniser():
    pytest.importorskip('pocketsphinx', reason=WHY)
    from oxygen_ros.voice.recogniser import Recogniser
    return Recogniser(task_phrases('robot'))


SPOKEN = {
    'robot point at the red cube': Kind.INSTRUCTION, 'robot reach for the green ball': Kind.INSTRUCTION,
    'robot go to the blue cylinder': Kind.INSTRUCTION, 'robot go home': Kind.INSTRUCTION, 'stop': Kind.STOP,
    'robot where is the yellow cube': Kind.QUESTION, 'robot what colour is the cube': Kind.QUESTION,
    'robot is the cyan cylinder left of the red cube': Kind.QUESTION, 'robot what is rightmost': Kind.QUESTION,
    'robot how many red objects are there': Kind.QUESTION}


def spoken(synthesiser, *texts):
    """Return speech, int16, RATE per second, with silence between the texts."""
    silence = np.zeros(RATE // 2, np.int16)
    return np.concatenate([part for text in texts for part in (
        silence, resample(synthesiser.samples(text) // 2, synthesiser.rate, RATE))] + [silence])


def test_ten_phrases_that_the_voice_says_are_understood(synthesiser, recogniser, tmp_path):
    from oxygen_ros.voice.self_test import hear
    for number, (text, kind) in enumerate(SPOKEN.items()):
        path = tmp_path / f'{number}.wav'
        write_wav(path, spoken(synthesiser, text), RATE)
        heard, = hear(recogniser, read_wav(path))
        assert (heard.outcome, heard.text, heard.kind) == (Outcome.UNDERSTOOD, text.removeprefix('robot '), kind)
        assert 0.5 < heard.seconds < 5.0 and heard.cpu_seconds > 0.0


def test_other_talk_and_phrases_for_others_are_counted_and_not_understood(synthesiser, recogniser):
    from oxygen_ros.voice.listener import Listener
    listener = Listener(recogniser)
    for block in blocks(spoken(synthesiser, 'what is rightmost', 'robot did you see the game last night',
                                'i point at the red cube with my left hand'), 0.6):
        heard = listener.push(block)
        assert heard is None or heard.kind is None
    assert listener.counts[Outcome.NOT_ADDRESSED] == 1 and listener.counts.total() == 3


def test_noise_without_speech_is_no_utterance(recogniser):
    from oxygen_ros.voice.self_test import hear
    noise = np.random.default_rng(0).normal(0, 50, 3 * RATE).astype(np.int16)
    assert hear(recogniser, noise) == []


def test_utterance_of_which_the_beginning_was_not_heard_is_forgotten(synthesiser, recogniser):
    from oxygen_ros.voice.listener import Listener
    listener = Listener(recogniser)
    sound = list(blocks(spoken(synthesiser, 'robot point at the red cube'), 0.6))
    for block in sound[:len(sound) // 2]:
        assert listener.push(block) is None
    listener.reset()
    assert listener.counts == {Outcome.TALKED_OVER: 1} and not listener.in_speech
    silence = list(blocks(np.zeros(RATE, np.int16)))
    assert [listener.push(block) for block in silence] == [None] * len(silence)


def test_word_without_a_pronunciation_is_refused(recogniser):
    from oxygen_ros.voice.recogniser import Recogniser
    with pytest.raises(ConfigError, match="no pronunciation is known of 'xyzzy'"):
        Recogniser(Phrases({Kind.INSTRUCTION: ('say xyzzy',)}))


def test_voice_stops_when_the_sink_has_enough_and_speaks_again(synthesiser):
    parts = []
    assert not synthesiser.speak('one two three four five six seven', lambda part: parts.append(part) or False)
    assert len(parts) == 1
    assert len(synthesiser.samples('one two three four five six seven')) > len(parts[0])


def test_failing_sink_is_the_callers_error_and_does_no_harm(synthesiser):
    def sink(_):
        raise OSError('unplugged')

    with pytest.raises(OSError, match='unplugged'):
        synthesiser.speak('one two', sink)
    assert len(synthesiser.samples('one')) > 1000


def test_voice_that_there_is_not_is_refused(synthesiser):
    with pytest.raises(ConfigError, match="no voice 'nobody'"):
        type(synthesiser)('nobody')


def test_self_test_tells_what_was_understood(synthesiser, recogniser, capsys, monkeypatch):
    from oxygen_ros.voice import self_test
    monkeypatch.setattr(self_test, 'VOICES', ('en-us',))
    monkeypatch.setattr(self_test, 'OTHER_TALK', ('the weather is nice today',))
    assert main(['hear', '--self-test', '3']) == 0
    assert '3 of 3 understood, 0 wrongly; other talk: 0 of 1 accepted' in capsys.readouterr().out
