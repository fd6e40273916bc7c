"""What is spoken of texts that stream: whole sentences, the newest, and no word of what was taken back."""

from __future__ import annotations

import threading
import time
import wave

import numpy as np
import pytest

from oxygen_ros.errors import ConfigError
from oxygen_ros.voice.lines import Ending, Line, LineQueue
from oxygen_ros.voice.speaker import Speaker, WavFolder
from oxygen_ros.voice.spoken_texts import SpokenTexts, TextEnd


def texts_of(queue: LineQueue) -> list[str]:
    """Take all that waits."""
    lines = []
    while (line := queue.take(timeout=0)) is not None:
        lines.append(line.text)
        queue.done(Ending.SPOKEN)
    return lines


class Texts:
    """SpokenTexts with a clock of the test, and pieces numbered."""

    def __init__(self, tasks=('answer', 'speech'), repeat_after=10.0):
        self.queue = LineQueue(4)
        self.texts = SpokenTexts(self.queue, tasks, repeat_after)
        self.now = 0.0
        self._started = set()

    def push(self, request, delta, end=None, task='answer', conversation='', first=None):
        first = request not in self._started if first is None else first
        self._started.add(request)
        self.texts.push(self.now, request, task, conversation, delta, first, end)


def test_sentences_are_formed_of_pieces_as_soon_as_they_are_whole():
    texts = Texts()
    for piece in ('The cu', 'be is red. The b', 'all is'):
        texts.push(1, piece)
    assert texts_of(texts.queue) == ['The cube is red.']
    texts.push(1, ' blue', TextEnd.WHOLE)
    assert texts_of(texts.queue) == ['The ball is blue']


def test_two_texts_at_the_same_time_do_not_mix():
    texts = Texts()
    texts.push(1, 'It is ')
    texts.push(2, 'There ')
    texts.push(1, 'red.', TextEnd.WHOLE)
    texts.push(2, 'are two.', TextEnd.WHOLE)
    assert texts_of(texts.queue) == ['It is red.', 'There are two.']


def test_rest_of_a_text_that_was_cut_is_not_spoken():
    texts = Texts()
    texts.push(1, 'It is red. And it has', TextEnd.CUT)
    texts.push(2, 'It is blue.', TextEnd.CUT)
    assert texts_of(texts.queue) == ['It is red.', 'It is blue.']


def test_nothing_of_a_text_that_was_taken_back_is_spoken_any_more():
    texts = Texts()
    texts.push(1, 'It is red. And')
    texts.push(1, ' more.', TextEnd.TAKEN_BACK)
    texts.push(1, 'Late piece.', TextEnd.WHOLE)
    assert texts_of(texts.queue) == []
    assert texts.queue.counts[Ending.TAKEN_BACK] == 1


def test_number_that_begins_anew_is_a_new_text():
    """The inference node was started again, in the middle of a text or after it."""
    texts = Texts()
    texts.push(1, 'Old. Beginning of', TextEnd.TAKEN_BACK)
    texts.push(2, 'Half a')
    texts.push(1, 'New one.', TextEnd.WHOLE, first=True)
    texts.push(2, 'New two.', TextEnd.WHOLE, first=True)
    assert texts_of(texts.queue) == ['New one.', 'New two.']


def test_other_tasks_are_not_spoken():
    texts = Texts(tasks=('answer',))
    texts.push(1, 'i rest', TextEnd.WHOLE, task='speech')
    assert texts_of(texts.queue) == []


def test_newer_narration_replaces_what_waits_of_older():
    texts = Texts()
    texts.push(1, 'i reach for the red cube', TextEnd.WHOLE, task='speech')
    texts.push(2, 'i point at the red cube', TextEnd.WHOLE, task='speech')
    assert texts_of(texts.queue) == ['i point at the red cube']
    assert texts.queue.counts[Ending.REPLACED] == 1


def test_all_sentences_of_one_text_are_spoken():
    texts = Texts()
    texts.push(1, 'One. Two. Three.', TextEnd.WHOLE, conversation='utterance')
    assert texts_of(texts.queue) == ['One.', 'Two.', 'Three.']


def test_same_narration_is_not_said_again_for_a_while():
    texts = Texts(repeat_after=10.0)
    said = []
    for request, now, line in ((1, 0.0, 'i rest'), (2, 1.0, 'i rest'), (3, 9.0, 'i rest'), (4, 11.0, 'i rest'),
                               (5, 12.0, 'i go home'), (6, 13.0, 'i rest')):
        texts.now = now
        texts.push(request, line, TextEnd.WHOLE, task='speech')
        said += texts_of(texts.queue)
    assert said == ['i rest', 'i rest', 'i go home', 'i rest']
    assert texts.texts.repeated == 2


def test_answer_is_said_again_when_it_is_asked_again():
    texts = Texts()
    for request in (1, 2):
        texts.push(request, 'yes', TextEnd.WHOLE)
    assert texts_of(texts.queue) == ['yes', 'yes']


def test_answers_come_before_narration():
    queue = LineQueue()
    queue.put(Line('narration', 1, 'speech'))
    queue.put(Line('answer', 2, urgent=True))
    assert texts_of(queue) == ['answer', 'narration']


@pytest.mark.parametrize(('current', 'newer', 'goes_on'), [
    (Line('narration', 1, 'speech'), Line('narration', 2, 'speech'), True),
    (Line('narration', 1, 'speech'), Line('answer', 2, urgent=True), False),
    (Line('answer', 1, 'answer me', urgent=True), Line('answer', 2, 'answer me', urgent=True), False),
    (Line('answer', 1, 'answer me', urgent=True), Line('answer', 1, 'answer me', urgent=True), True),
    (Line('answer', 1, 'answer me', urgent=True), Line('answer', 2, 'answer you', urgent=True), True),
    (Line('answer', 1, urgent=True), Line('answer', 2, urgent=True), True),
    (Line('answer', 1, urgent=True), Line('narration', 2, 'speech'), True)])
def test_what_interrupts_the_line_that_is_being_spoken(current, newer, goes_on):
    queue = LineQueue()
    queue.put(current)
    assert queue.take(timeout=0) == current
    queue.put(newer)
    assert queue.wanted() == goes_on


def test_queue_is_bounded_and_narration_goes_first():
    queue = LineQueue(3)
    for number in range(2):
        queue.put(Line(f'answer {number}', number + 1, urgent=True))
    queue.put(Line('narration', 3, 'speech'))
    queue.put(Line('answer 2', 4, urgent=True))
    queue.put(Line('answer 3', 5, urgent=True))
    assert texts_of(queue) == ['answer 1', 'answer 2', 'answer 3']
    assert queue.counts[Ending.DROPPED] == 2


def test_no_line_begins_while_the_queue_is_held_and_then_it_does():
    queue = LineQueue()
    queue.hold(60.0)
    queue.put(Line('answer', 1, urgent=True))
    assert queue.take(timeout=0.01) is None
    taken = []
    thread = threading.Thread(target=lambda: taken.append(queue.take(timeout=20)))
    thread.start()
    queue.hold(0.0)
    thread.join(timeout=20)
    assert taken == [Line('answer', 1, urgent=True)]


def test_hold_ends_by_itself():
    queue = LineQueue()
    queue.put(Line('answer', 1))
    queue.hold(0.02)
    assert queue.take(timeout=20) == Line('answer', 1)


class SlowVoice:
    """Says every word as a piece of sound; waits before each but the first until the test lets it go on."""

    rate = 1000

    def __init__(self):
        self.steps = threading.Semaphore(0)

    def speak(self, text, sink):
        for number, word in enumerate(text.split()):
            if number:
                assert self.steps.acquire(timeout=20)
            if not sink(np.full(10, len(word), np.int16)):
                return False
        return True


class Written:
    """An output that keeps what came."""

    audible = True

    def __init__(self):
        self.lines, self.began = [], threading.Semaphore(0)
        self.fails = False

    def begin(self, line, rate):
        if self.fails:
            raise OSError('unplugged')
        self.lines.append([line.text, 0, None])
        self.began.release()

    def write(self, samples):
        self.lines[-1][1] += len(samples)

    def end(self, whole):
        self.lines[-1][2] = whole


@pytest.fixture
def voice():
    """A speaker in its thread, with what it wrote and said about itself."""
    class Voice:
        queue, synthesis, output = LineQueue(), SlowVoice(), Written()
        speaking, endings = [], []

        def wait(self, count):
            end = time.monotonic() + 20
            while len(self.endings) < count and time.monotonic() < end:
                time.sleep(0.005)
            return self.endings

    voice = Voice()
    voice.speaking, voice.endings = [], []
    voice.speaker = Speaker(voice.queue, voice.synthesis, voice.output, voice.speaking.append,
                            lambda line, ending, problem: voice.endings.append((line.text, ending, problem)))
    yield voice
    voice.synthesis.steps.release(100)
    voice.speaker.close()


def test_text_that_is_taken_back_stops_in_the_middle_and_the_next_is_spoken(voice):
    voice.queue.put(Line('one two three four', 1))
    assert voice.output.began.acquire(timeout=20)
    voice.queue.put(Line('five', 2))
    voice.queue.take_back(1)
    voice.synthesis.steps.release(10)
    assert voice.wait(2) == [('one two three four', Ending.INTERRUPTED, ''), ('five', Ending.SPOKEN, '')]
    assert voice.output.lines[0][2] is False and voice.output.lines[0][1] < 40
    assert voice.output.lines[1] == ['five', 10, True]


def test_speaking_is_told_once_for_lines_in_a_row(voice):
    voice.queue.put(Line('one two', 1))
    assert voice.output.began.acquire(timeout=20)
    voice.queue.put(Line('three', 2))
    voice.synthesis.steps.release(10)
    voice.wait(2)
    voice.speaker.close()
    assert voice.speaking == [True, False]


def test_voice_that_nobody_hears_does_not_count_as_speaking(voice):
    voice.output.audible = False
    voice.queue.put(Line('one', 1))
    voice.wait(1)
    voice.speaker.close()
    assert voice.speaking == []


def test_device_that_fails_costs_one_line_only(voice):
    voice.output.fails = True
    voice.queue.put(Line('one', 1))
    assert voice.wait(1) == [('one', Ending.FAILED, 'OSError: unplugged')]
    voice.output.fails = False
    voice.queue.put(Line('two', 2))
    assert voice.wait(2)[1] == ('two', Ending.SPOKEN, '')


def test_closing_ends_the_thread_in_the_middle_of_a_line(voice):
    voice.queue.put(Line('one two three', 1))
    assert voice.output.began.acquire(timeout=20)
    voice.queue.close()
    voice.synthesis.steps.release(10)
    voice.speaker.close()
    assert voice.output.lines == [['one two three', 10, False]] and voice.queue.take(timeout=0) is None


def test_wav_folder_has_a_file_per_line_and_goes_on_with_the_numbers(tmp_path):
    for text, whole in (('yes', True), ('where it', False)):
        output = WavFolder(tmp_path)
        output.begin(Line(text), 8000)
        output.write(np.arange(100, dtype=np.int16))
        output.end(whole)
    assert (tmp_path / 'lines.txt').read_text() == '0001 yes\n0002 where it ...\n'
    with wave.open(str(tmp_path / '0002.wav')) as file:
        assert (file.getframerate(), file.getnframes(), file.getsampwidth()) == (8000, 100, 2)


def test_wav_folder_that_cannot_be_made_is_wrong_use(tmp_path):
    (tmp_path / 'file').write_text('')
    with pytest.raises(ConfigError, match='cannot be made'):
        WavFolder(tmp_path / 'file' / 'folder')
