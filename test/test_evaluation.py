"""Statistics of the evaluation on results made by hand, and an exam through the engine."""

import json
import math

import numpy as np
import pytest
from training_data import make_dataset, write_files

from oxygen_ros import cli
from oxygen_ros.engine.scheduler import Mode
from oxygen_ros.evaluation.closed_loop import EpisodeResult
from oxygen_ros.evaluation.exam import Exam, ExamResult, session_settings
from oxygen_ros.evaluation.figures import Mean, Share, shares
from oxygen_ros.evaluation.report import agreement, episode_figures, exam_figures, plain, table
from oxygen_ros.evaluation.smoothness import ChunkGaps, jerk
from oxygen_ros.robot.chunk import JointChunk
from oxygen_ros.simulation.episode import Episode, Facts, Outcome


@pytest.mark.parametrize(('right', 'count', 'low', 'high'), [
    (10, 10, 0.7225, 1.0), (0, 10, 0.0, 0.2775), (81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605)])
def test_intervals_are_those_of_wilson(right, count, low, high):
    # The last two are example 1 of Newcombe, Statistics in Medicine 17 (1998), page 857.
    assert Share(right, count).interval == pytest.approx((low, high), abs=1e-4)


def test_share_of_nothing_is_unknown():
    none = Share(0, 0)
    assert math.isnan(none.share) and none.interval == (0, 1) and none.text == 'none'
    assert plain({'x': none})['x']['share'] is None
    with pytest.raises(ValueError, match='3 of 2 cannot be'):
        Share(3, 2)


def test_mean_has_interval_and_quantiles():
    mean = Mean((1.0, 2.0, 3.0, 4.0, 10.0), 'cm')
    assert mean.mean == 4 and mean.quantile(0.5) == 3 and mean.quantile(0.95) == pytest.approx(8.8)
    half = 1.96 * math.sqrt(50 / 4 / 5)
    assert mean.interval == pytest.approx((4 - half, 4 + half), abs=1e-3)
    assert Mean((2.0,)).interval == (2, 2) and Mean(()).text == 'none'


def test_kinds_are_counted_apart():
    assert shares([('where', True), ('count', False), ('where', False)]) == {'count': Share(0, 1), 'where': Share(1, 2)}


def test_figures_of_an_exam_leave_matters_of_opinion_apart():
    result = ExamResult(answers=[('where', True), ('where', False), ('count', True)], unclear=[('where', False)],
                        lines=[('reach', True)], notes=[Facts(3, 4, 2), Facts(4, 4)], whole_notes=[True], errors=[0.1])
    figures = exam_figures(result)
    assert figures['answers'] == Share(2, 3) and figures['answers: where'] == Share(1, 2)
    assert figures['facts of notes'] == Share(7, 8)
    assert figures['facts of notes, those left out counted as wrong'] == Share(7, 10)
    assert figures['notes without any mistake'] == Share(1, 1)
    assert 'answers: where' in table({'isolated': figures, 'shared_kv': figures})


def test_figures_of_episodes_tell_outcomes_apart():
    def result(kind, outcome, distance=0.02, **more):
        return EpisodeResult(Episode(0, kind, '', ''), outcome, distance, seconds=4.0, chunks=20, jerk=2.0, **more)

    figures = episode_figures([
        result('reach', Outcome.SUCCESS, gaps=[0.1], lines=[True, False], notes=[Facts(2, 3)]),
        result('reach', Outcome.WRONG_OBJECT, 0.2, answers=[('where', True)]),
        result('reach', Outcome.MISSED, 0.05), result('absent', Outcome.NOT_AT_REST, math.nan)], 5.0)
    assert figures['success: reach'] == Share(1, 3) and figures['success: absent'] == Share(0, 1)
    assert figures['wrong_object: reach'] == Share(1, 3) and figures['not_at_rest: absent'] == Share(1, 1)
    assert figures['final distance'].mean == pytest.approx(9) and figures['time to success'].values == (4.0,)
    assert figures['chunks per second'].mean == 5 and figures['gap between chunks'].mean == 0.1
    assert figures['spoken lines'] == Share(1, 2) and figures['facts of notes'] == Share(2, 3)


def test_jerk_is_the_third_derivative():
    times = np.arange(20) * 0.1
    assert jerk(np.stack([times**3, -(times**3)], axis=1), 0.1) == pytest.approx(6)
    assert jerk(times[:, None] ** 2, 0.1) == pytest.approx(0, abs=1e-9) and math.isnan(jerk(times[:3, None], 0.1))


def test_gap_of_a_chunk_is_measured_where_it_begins():
    def chunk(start_ns, positions):
        return JointChunk(('a', 'b'), np.array(positions, dtype=float), start_ns, 100, 1, start_ns)

    gaps = ChunkGaps()
    gaps.push(chunk(0, [[0, 0], [1, 0], [2, 0]]))
    gaps.push(chunk(150, [[1.5, -0.25], [2, 0], [3, 0]]))  # between two rows
    gaps.push(chunk(900, [[9, 9], [9, 9], [9, 9]]))  # after its end
    assert gaps.values == [0.25]


def test_modes_are_compared_text_by_text_and_chunk_by_chunk():
    one = ExamResult(texts={(1, 'answer', 'a'): 'yes', (1, 'memory', ''): 'x'}, chunks={1: np.zeros((2, 2))})
    other = ExamResult(texts={(1, 'answer', 'a'): 'no', (1, 'memory', ''): 'x'}, chunks={1: np.full((2, 2), 0.25)})
    figures = agreement({'isolated': one, 'shared_kv': other})
    assert figures['shared_kv and isolated: equal texts'] == Share(1, 2)
    assert figures['shared_kv and isolated: difference of chunks'].mean == 0.25


def test_exam_asks_everything_in_every_mode_and_modes_agree(tmp_path):
    write_files(tmp_path)
    dataset = make_dataset(tmp_path / 'data', frames=2)
    settings = session_settings(str(tmp_path / 'model.yaml'), str(tmp_path / 'robot.yaml'))
    results = {mode.value: Exam(settings, mode, dataset).run(range(2)) for mode in Mode}
    asked = sum(len(dataset[i].questions) for i in range(2))
    for result in results.values():
        assert len(result.answers) + len(result.unclear) == asked and len(result.notes) == 2
        assert len(result.texts) == asked + 4 and len(result.chunks) == 2
    figures = agreement(results)
    assert figures['shared_kv and isolated: equal texts'].share == 1
    assert figures['continuous_batching and isolated: difference of chunks'].quantile(1) < 1e-4


def test_exam_can_leave_cameras_out(tmp_path):
    write_files(tmp_path)
    dataset = make_dataset(tmp_path / 'data', frames=1)
    settings = session_settings(str(tmp_path / 'model.yaml'), str(tmp_path / 'robot.yaml'))
    both = [Exam(settings, Mode.SHARED_KV, dataset, cameras).run([0]).chunks[1] for cameras in (None, ['head'])]
    assert not np.array_equal(*both)


@pytest.mark.parametrize(('words', 'message'), [
    (['--questions', '5'], '--questions needs --held-out'), ([], 'give --episodes or --questions'),
    (['--episodes', '1', '--mode', 'magic'], 'choose from isolated, shared_kv'),
    (['--episodes', '1', '--ros', '--cameras', 'head'], '--cameras is not for --ros'),
    (['--episodes', '1', '--ensemble', '1'], '--ensemble 1.0 must be below 1'),
    (['--episodes', '1', '--cameras', 'nose'], 'there is no nose: choose from head, left_wrist')])
def test_wrong_words_are_one_clear_line(words, message, capsys):
    assert cli.main(['evaluate', *words]) == 2
    assert message in capsys.readouterr().err


def test_command_asks_in_every_mode_and_writes_figures(tmp_path, capsys):
    write_files(tmp_path)
    make_dataset(tmp_path / 'data', frames=2)
    words = ['--model', str(tmp_path / 'model.yaml'), '--robot', str(tmp_path / 'robot.yaml'), '--threads', '1']
    assert cli.main(['evaluate', *words, '--questions', '8', '--held-out', str(tmp_path / 'data'), '--mode',
                     'isolated,shared_kv', '--json', str(tmp_path / 'out.json')]) == 0
    part, = json.loads((tmp_path / 'out.json').read_text())['parts']
    assert set(part['modes']) == {'isolated', 'shared_kv'} and 'about 2 held-out frames' in part['title']
    assert part['agreement']['shared_kv and isolated: equal texts']['share'] == 1
    assert 'spoken lines' in capsys.readouterr().out
    assert cli.main(['evaluate', *words, '--questions', '99', '--held-out', str(tmp_path / 'data')]) == 2
