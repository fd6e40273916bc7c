"""Lines that people type, questions as the truth understands them, and the demo's own script."""

from __future__ import annotations

import numpy as np
import pytest

from oxygen_ros.demo.lines import HELP, Line, Wish, read_line
from oxygen_ros.demo.script import write_script
from oxygen_ros.simulation import language
from oxygen_ros.simulation.asking import read_question
from oxygen_ros.simulation.scene import sample_scene


def objects_of(seed: int):
    objects = sample_scene(np.random.default_rng(seed)).objects
    return tuple(item.with_pixels(30 * seed % 170 + 40 * number) for number, item in enumerate(objects))


@pytest.mark.parametrize(('text', 'line'), [
    ('', Line(Wish.NOTHING)), ('  \n', Line(Wish.NOTHING)), ('# note', Line(Wish.NOTHING)), ('...', Line(Wish.NOTHING)),
    ('Go to the  red cube.\n', Line(Wish.INSTRUCT, 'go to the red cube')),
    ('Where is the RED cube ?', Line(Wish.ASK, 'where is the red cube')),
    ('remember the red cube?', Line(Wish.RECALL, 'red cube')), ('remember?', Line(Wish.RECALL)),
    ('recall', Line(Wish.RECALL)), ('stop', Line(Wish.STOP)), ('Stop!', Line(Wish.STOP)), ('help', Line(Wish.HELP)),
    ('?', Line(Wish.HELP)), ('quit', Line(Wish.QUIT)), ('look', Line(Wish.LOOK)),
    ('wait 2.5', Line(Wish.WAIT, seconds=2.5)), ('wait 1e9', Line(Wish.WAIT, seconds=60.0)),
    ('scene 12', Line(Wish.SCENE, number=12)), ('scene 9999999999', Line(Wish.INSTRUCT, 'scene 9999999999')),
    ('wait nan', Line(Wish.INSTRUCT, 'wait nan')), ('stop the red cube', Line(Wish.INSTRUCT, 'stop the red cube'))])
def test_a_line_is_an_instruction_a_question_or_a_word_to_the_demo(text, line):
    assert read_line(text) == line


def test_every_word_to_the_demo_is_in_the_help():
    for word in ('remember', 'stop', 'look', 'wait', 'quit', 'rest'):
        assert word in HELP


def test_questions_of_the_policy_are_understood_with_their_answer():
    kinds = set()
    for seed in range(150):
        objects = objects_of(seed)
        for question in language.draw_questions(np.random.default_rng(seed), objects):
            assert read_question(f' {question.question.capitalize()}?', objects) == question
            kinds.add(question.kind)
    assert kinds == set(language.QUESTION_KINDS)


@pytest.mark.parametrize('text', [
    'who are you', 'where is the red house', 'is the red cube heavier than the blue ball',
    'how many elephants are there', 'what colour is the house', 'is the red cube left of the red cube', ''])
def test_other_questions_are_not(text):
    assert read_question(text, objects_of(3)) is None


def test_the_script_asks_for_two_objects_for_one_that_is_not_there_and_for_rest():
    for seed in range(60):
        objects = objects_of(seed)
        parts = write_script(objects, seed)
        assert parts == write_script(objects, seed)
        kinds, names = zip(*(language.read_instruction(part.instruction) for part in parts))
        assert kinds == ('reach', 'reach', 'reach', 'rest')
        there = {item.name for item in objects}
        assert {names[0], names[1]} <= there and names[2] not in there
        assert names[0] != names[1] or len(language.mentioned(objects)) < 2
        assert read_line(parts[-1].recall) == Line(Wish.RECALL, names[0])
        for part in parts:
            for question in part.questions:
                line = read_line(question)
                assert line.wish is Wish.ASK
                asked = read_question(line.words, objects)
                assert asked is not None and (asked.clear or names[2] in line.words)
