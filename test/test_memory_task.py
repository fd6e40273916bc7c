"""Notes out of increments; only whole ones are remembered."""

import numpy as np
import pytest

from oxygen_ros.engine.requests import FinishReason, TextDelta, TextRequest
from oxygen_ros.models.interface import PolicyInput
from oxygen_ros.observation import Observation
from oxygen_ros.tasks.memory import Note, NoteCollector

INPUTS = PolicyInput(Observation(7, 123, {'head': np.zeros((1, 1, 3), np.uint8)}, tf_frame='pelvis'))


def delta(text, finish=None, request_id=1, inputs=INPUTS):
    return TextDelta(TextRequest(request_id, 'memory'), inputs, 0, text, 1, 0.1, finish)


@pytest.mark.parametrize('finish', [FinishReason.STOP, FinishReason.LENGTH])
def test_whole_note_is_that_of_its_frame(finish):
    notes = NoteCollector()
    assert notes.push(delta(' a red')) is None
    assert notes.push(delta(' cup ', finish)) == Note('a red cup', 123, 7, 'pelvis')


@pytest.mark.parametrize('finish', [reason for reason in FinishReason
                                    if reason not in (FinishReason.STOP, FinishReason.LENGTH)])
def test_note_cut_short_is_not_remembered_and_leaves_nothing(finish):
    notes = NoteCollector()
    notes.push(delta('half a'))
    assert notes.push(delta(' note', finish)) is None
    assert notes.push(delta('new', FinishReason.STOP)).text == 'new'


def test_empty_note_is_not_remembered():
    assert NoteCollector().push(delta(' \n', FinishReason.STOP)) is None


def test_note_that_was_never_started_is_none():
    assert NoteCollector().push(delta('x', FinishReason.STOP, inputs=None)) is None


def test_notes_at_the_same_time_are_kept_apart_and_clear_forgets_both():
    notes = NoteCollector()
    notes.push(delta('one ', request_id=1))
    notes.push(delta('two ', request_id=2))
    assert notes.push(delta('end', FinishReason.STOP, 2)).text == 'two end'
    notes.clear()
    assert notes.push(delta('end', FinishReason.STOP, 1)).text == 'end'
