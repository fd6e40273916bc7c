"""What is said about a scene is true of it. Scenes are made by hand; no simulator, no pictures."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from oxygen_ros.simulation import language
from oxygen_ros.simulation.dataset import Note, Question
from oxygen_ros.simulation.episode import (
    Episode,
    Facts,
    Judge,
    Outcome,
    expected_line,
    make_episode,
    score_answer,
    score_line,
    score_note,
)
from oxygen_ros.simulation.objects import LEFT_MIDDLE, NEAR_FAR, TableObject
from oxygen_ros.simulation.scene import APART, sample_scene
from oxygen_ros.simulation.simulation import Truth


def thing(name: str, x: float, y: float, pixels: int | None = 120) -> TableObject:
    colour, shape = name.split()
    return TableObject(colour, shape, (x, y, 0.37), 0.03, 0.0, pixels)


RED_CUBE = thing('red cube', 0.45, 0.20)
BLUE_BALL = thing('blue ball', 0.28, -0.03)
RED_BALL = thing('red ball', 0.30, -0.20)
TABLE = (BLUE_BALL, RED_BALL, RED_CUBE)


@pytest.mark.parametrize(('x', 'y', 'region', 'arm'), [
    (0.45, 0.2, 'far left', 'left'), (0.28, 0.2, 'near left', 'left'), (0.45, 0.05, 'far middle', 'left'),
    (0.28, -0.05, 'near middle', 'right'), (0.45, -0.2, 'far right', 'right')])
def test_region_and_nearer_arm_follow_the_place(x, y, region, arm):
    item = thing('red cube', x, y)
    assert (item.region, item.arm, item.region_clear) == (region, arm, True)


def test_region_near_a_border_is_a_matter_of_opinion():
    assert not thing('red cube', NEAR_FAR + 0.01, 0.0).region_clear
    assert not thing('red cube', 0.45, -LEFT_MIDDLE + 0.01).region_clear
    assert not language.note([thing('red cube', 0.45, LEFT_MIDDLE - 0.01)]).clear


def test_note_names_what_is_seen_in_the_order_of_colours():
    assert language.note(TABLE) == Note('red cube far left, red ball near right, blue ball near middle', True)
    hidden = (BLUE_BALL, replace(RED_BALL, pixels=3), RED_CUBE)
    assert language.note(hidden) == Note('red cube far left, blue ball near middle', True)
    half = (BLUE_BALL, replace(RED_BALL, pixels=40), RED_CUBE)
    assert not language.note(half).clear
    assert language.note([replace(RED_CUBE, pixels=0)]).text == 'nothing'


def test_where_answers_with_the_region_or_that_it_is_not_here():
    assert language.where_question('red ball', TABLE) == Question('where', 'where is the red ball', 'near right', True)
    assert language.where_question('red cylinder', TABLE).answer == 'not here'
    half = (BLUE_BALL, replace(RED_BALL, pixels=20), RED_CUBE)
    assert not language.where_question('red cylinder', half).clear  # the half hidden red thing might be one
    assert language.where_question('blue cylinder', half).clear


@pytest.mark.parametrize(('first', 'words', 'second', 'answer'), [
    (RED_CUBE, 'left of', BLUE_BALL, 'yes'), (RED_CUBE, 'right of', BLUE_BALL, 'no'),
    (RED_CUBE, 'behind', BLUE_BALL, 'yes'), (RED_CUBE, 'in front of', RED_BALL, 'no'),
    (RED_BALL, 'right of', BLUE_BALL, 'yes')])
def test_relations_are_seen_from_the_robot(first, words, second, answer):
    question = language.relation_question(first, words, second)
    assert (question.answer, question.clear) == (answer, True)


def test_relation_of_objects_side_by_side_is_a_matter_of_opinion():
    assert not language.relation_question(BLUE_BALL, 'behind', RED_BALL).clear


@pytest.mark.parametrize(('which', 'answer'), [
    ('objects', 'three'), ('balls', 'two'), ('cylinders', 'zero'), ('red objects', 'two'), ('green objects', 'zero')])
def test_counts(which, answer):
    assert language.count_question(which, TABLE).answer == answer


def test_colour_shape_and_ends_of_the_row():
    assert language.colour_question(RED_CUBE, TABLE).answer == 'red'
    assert language.shape_question(BLUE_BALL, TABLE).answer == 'ball'
    assert language.extreme_question('leftmost', TABLE).answer == 'red cube'
    assert language.extreme_question('rightmost', TABLE).answer == 'red ball'
    near = thing('green cube', 0.45, 0.18)
    assert language.extreme_question('leftmost', (*TABLE, near)) is None


def test_drawn_questions_differ_and_are_of_every_kind():
    random = np.random.default_rng(0)
    kinds = set()
    for _ in range(60):
        questions = language.draw_questions(random, TABLE)
        assert len({question.question for question in questions}) == len(questions) == language.QUESTIONS
        kinds |= {question.kind for question in questions}
        for question in questions:
            if question.kind == 'exists':
                there = question.question.removeprefix('is there a ') in {item.name for item in TABLE}
                assert question.answer == ('yes' if there else 'no')
            if question.kind in ('colour', 'shape'):  # the words fit exactly one object
                words = set(question.question.split())
                assert sum(item.colour in words or item.shape in words for item in TABLE) == 1
    assert kinds == set(language.QUESTION_KINDS)


def test_every_word_is_in_the_vocabulary():
    random, words = np.random.default_rng(1), set()
    for seed in range(200):
        objects = sample_scene(np.random.default_rng(seed)).objects
        texts = [part for question in language.draw_questions(random, objects)
                 for part in (question.question, question.answer)]
        texts += [language.note(objects).text, make_episode(seed, objects).instruction,
                  language.absent_line('red cube'),
                  *(language.reach_line(item.name, item.arm, distance)[0] for item in objects for distance in (0, 1)),
                  *(language.rest_line(deviation)[0] for deviation in (0, 1))]
        words |= {word for text in texts for word in text.replace(',', ' , ').split()}
    assert words <= set(language.vocabulary())


@pytest.mark.parametrize(('text', 'meaning'), [
    ('point at the red cube', ('reach', 'red cube')), ('Reach for the  blue ball.', ('reach', 'blue ball')),
    ('go home', ('rest', '')), ('Rest', ('rest', '')), ('point at the red house', ('', '')), ('', ('', ''))])
def test_instructions_are_understood(text, meaning):
    assert language.read_instruction(text) == meaning


def test_scenes_leave_no_doubt():
    for seed in range(200):
        objects = sample_scene(np.random.default_rng(seed)).objects
        assert 1 <= len(objects) <= 4 and len({item.name for item in objects}) == len(objects)
        for item in objects:
            assert item.region_clear and abs(item.position[1]) >= 0.02
        places = np.array([item.position[:2] for item in objects])
        distances = np.linalg.norm(places[:, None] - places[None], axis=-1) + np.eye(len(objects))
        assert distances.min() >= APART


def truth(objects=TABLE, left=(0.2, 0.4, 0.5), right=(0.2, -0.4, 0.5), from_rest=0.0) -> Truth:
    return Truth(tuple(objects), {'left': np.array(left), 'right': np.array(right)}, np.zeros(14), from_rest)


def test_line_tells_what_the_robot_does():
    there = RED_CUBE.point_above
    assert expected_line('go to the red cube', truth()) == ('i reach for the red cube with my left hand', True)
    assert expected_line('go to the red cube', truth(left=there)) == ('i point at the red cube with my left hand', True)
    assert expected_line('go to the cyan ball', truth()) == ('i see no cyan ball', True)
    assert expected_line('rest', truth(from_rest=0.5)) == ('i go home', True)
    assert expected_line('rest', truth()) == ('i rest', True)
    assert expected_line('sing', truth()) == ('', False)


def test_line_is_true_of_one_of_its_moments_or_a_matter_of_opinion():
    away, near = truth(), truth(left=np.add(RED_CUBE.point_above, (0.035, 0, 0)))
    told = 'go to the red cube'
    assert score_line('I reach for the red cube with my left hand.', told, [away]) is True
    assert score_line('i reach for the red cube with my right hand', told, [away]) is False
    arrived = truth(left=RED_CUBE.point_above)
    assert score_line('i point at the red cube with my left hand', told, [away, arrived]) is True
    assert score_line('i see no red cube', told, [near]) is None


def test_answers_are_compared_word_for_word():
    question = language.where_question('red ball', TABLE)
    assert score_answer(question, ' Near right. ') and not score_answer(question, 'near')


@pytest.mark.parametrize(('text', 'facts'), [
    ('red cube far left, red ball near right, blue ball near middle', Facts(9, 9)),
    ('red cube far right, red ball near right, blue ball near middle', Facts(8, 9)),
    ('red cube far left, red ball near right', Facts(6, 6, 3)),
    ('red cube far left, green ball near right, blue ball near middle', Facts(6, 9, 3)),
    ('red cube far left, red cube far left, red ball near right, blue ball near middle', Facts(9, 12)),
    ('nothing', Facts(0, 0, 9)), ('red cube', Facts(1, 3, 6)), ('', Facts(0, 0, 9))])
def test_note_is_scored_by_its_facts(text, facts):
    assert score_note(text, TABLE) == facts


def test_half_hidden_objects_and_borders_do_not_count_in_notes():
    half = replace(RED_BALL, pixels=30)
    for text in ('red cube far left', 'red cube far left, red ball far left'):
        assert score_note(text, (half, RED_CUBE)) == Facts(3, 3)
    assert score_note('red cube near left', [thing('red cube', NEAR_FAR, 0.2)]) == Facts(1, 1)
    assert score_note('red ball near right', [replace(RED_BALL, pixels=0)]) == Facts(0, 3)


def watch(episode: Episode, *moments: tuple[float, Truth]) -> Outcome:
    judge = Judge(episode)
    for time, moment in moments:
        judge.watch(moment, time)
    return judge.outcome


REACH = Episode(0, 'reach', 'go to the red cube', 'red cube')
AT_CUBE = truth(left=np.add(RED_CUBE.point_above, (0.0, 0.02, 0.0)), from_rest=1.0)
AT_BALL = truth(right=RED_BALL.point_above, from_rest=1.0)
BETWEEN = truth(from_rest=1.0)


def test_reaching_takes_a_second_without_a_break():
    assert watch(REACH, (0, BETWEEN), (1, AT_CUBE), (1.5, AT_CUBE), (2, AT_CUBE)) is Outcome.SUCCESS
    assert watch(REACH, (1, AT_CUBE), (1.5, BETWEEN), (1.6, AT_CUBE), (2.4, AT_CUBE)) is Outcome.MISSED
    assert watch(REACH, (0, AT_BALL), (0.1, BETWEEN), (1, AT_BALL), (2, AT_BALL)) is Outcome.WRONG_OBJECT
    assert watch(REACH, (0, BETWEEN), (1, AT_BALL), (2, AT_BALL), (3, AT_CUBE), (4, AT_CUBE)) is Outcome.SUCCESS


def test_object_that_the_robot_begins_at_is_none_that_it_chose():
    assert watch(REACH, (0, AT_BALL), (1.1, AT_BALL), (2, BETWEEN)) is Outcome.MISSED


def test_what_is_not_there_is_answered_by_rest():
    absent = Episode(0, 'absent', 'go to the cyan ball', 'cyan ball')
    assert watch(absent, (0, truth()), (6, truth())) is Outcome.SUCCESS
    assert watch(absent, (0, truth()), (6, BETWEEN)) is Outcome.NOT_AT_REST
    assert watch(absent, (0, truth()), (1, AT_CUBE), (2, AT_CUBE), (6, truth())) is Outcome.WRONG_OBJECT


def test_episodes_are_the_same_for_the_same_seed_and_name_what_they_should():
    kinds = set()
    for seed in range(100):
        objects = sample_scene(np.random.default_rng(seed)).objects
        episode = make_episode(seed, objects)
        assert episode == make_episode(seed, objects)
        names = [item.name for item in objects]
        kinds.add((episode.kind, episode.start >= 0))
        assert language.read_instruction(episode.instruction)[1] == episode.name
        assert (episode.name in names) == (episode.kind == 'reach')
        assert episode.start < 0 or names[episode.start] != episode.name
    assert {kind for kind, _ in kinds} == {'reach', 'absent', 'rest'} and ('reach', True) in kinds
