"""Two recordings of outputs against each other: what differs, by how much, and what that means for the exit code."""

import json

import numpy as np
import pytest

from oxygen_ros.cli import main
from oxygen_ros.replay.bag_writer import BagWriter
from oxygen_ros.replay.message_types import make

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND
NAMES = ('left_elbow', 'right_elbow')


def time(kind, nanoseconds):
    return make(f'builtin_interfaces/msg/{kind}', sec=nanoseconds // SECOND, nanosec=nanoseconds % SECOND)


def header(stamp_ns):
    return make('std_msgs/msg/Header', stamp=time('Time', stamp_ns))


class Run:
    """Writes what a run gives out: three chunks, commands at 50 Hz, two spoken lines and two notes."""

    def __init__(self, path, shift=0, names=NAMES):
        self.start, self.names = START + shift, names
        self.offsets = dict.fromkeys(names, 0.0)  # added to the positions of a joint
        self.lines = {0: ['a red', ' cup'], 2: ['nothing']}
        self.notes = {0: 'a cup', 2: 'a table'}
        self.late = 0
        self.path = path

    def trajectory(self, stamp_ns, frame):
        points = [make('trajectory_msgs/msg/JointTrajectoryPoint', time_from_start=time('Duration', row * SECOND // 10),
                       positions=np.array([0.1 * frame + 0.01 * row + self.offsets[name] for name in self.names]))
                  for row in range(4)]
        return make('trajectory_msgs/msg/JointTrajectory', header=header(stamp_ns), joint_names=list(self.names),
                    points=points)

    def write(self, commands='/joint_commands', chunks='/chunks', frames=3):
        with BagWriter(self.path) as writer:
            for frame in range(frames):
                stamp_ns = self.start + frame * SECOND // 5
                if chunks:
                    writer.write(chunks, stamp_ns + SECOND // 20 + self.late, self.trajectory(stamp_ns, frame))
                for request, pieces in [(frame, self.lines[frame])] if frame in self.lines else []:
                    for sequence, piece in enumerate(pieces):
                        writer.write('/speech', stamp_ns + self.late + 10_000_000 * (sequence + 6), make(
                            'oxygen_ros/msg/TextChunk', header=header(stamp_ns), request_id=request + 1, task='speech',
                            sequence=sequence, delta=piece, finish_reason=int(sequence == len(pieces) - 1)))
                if frame in self.notes:
                    writer.write('/memory', stamp_ns + SECOND // 10, make(
                        'oxygen_ros/msg/MemoryEntry', header=header(stamp_ns), entry_id=frame + 1, count=1,
                        text=self.notes[frame], first_seen=time('Time', stamp_ns), last_seen=time('Time', stamp_ns)))
            for number in range(30 if commands else 0):
                stamp_ns = self.start + number * SECOND // 50
                position = np.array([0.01 * number + self.offsets[name] for name in self.names])
                writer.write(commands, stamp_ns, make('sensor_msgs/msg/JointState', header=header(stamp_ns),
                                                      name=list(self.names), position=position))
        return str(self.path)


@pytest.fixture
def runs(tmp_path):
    """Return two equal runs, not written yet."""
    return Run(tmp_path / 'a'), Run(tmp_path / 'b')


def compare(capsys, *words):
    code = main(['compare', *map(str, words), '--json'])
    said = capsys.readouterr()
    return code, json.loads(said.out) if said.out else said.err


def test_equal_runs_are_equal(runs, capsys):
    code, result = compare(capsys, *(run.write() for run in runs))
    assert code == 0 and result['equal'] and result['verdicts'] == []
    assert [actions['basis'] for actions in result['actions']] == ['chunks', 'commands']
    assert [actions['matched'] for actions in result['actions']] == [3, 30]
    assert result['texts']['speech'] == {'same': 2, 'different': 0, 'only_a': 0, 'only_b': 0, 'examples': []}
    assert result['notes']['same'] == 2 and result['chunk_timing']['compared'] == 3


def test_difference_of_a_joint_is_measured_and_judged(runs, capsys):
    a, b = runs
    b.offsets['right_elbow'] = 0.03
    paths = a.write(), b.write()
    code, result = compare(capsys, *paths, '--action-max', 0.02)
    assert code == 1
    for actions in result['actions']:
        assert actions['joints']['left_elbow']['largest'] == 0.0
        assert actions['joints']['right_elbow']['largest'] == pytest.approx(0.03)
        assert actions['joints']['right_elbow']['mean'] == pytest.approx(0.03)
    assert sum('right_elbow differs by up to 0.03' in verdict for verdict in result['verdicts']) == 2
    assert compare(capsys, *paths, '--action-max', 0.031)[0] == 0
    assert compare(capsys, *paths, '--action-max', 0.031, '--action-mean', 0.01)[0] == 1


def test_other_joints_and_missing_chunks_are_differences(tmp_path, capsys):
    paths = Run(tmp_path / 'a').write(), Run(tmp_path / 'b', names=('left_elbow', 'wrist')).write(frames=2)
    code, result = compare(capsys, *paths, '--action-max', 1, '--texts', 1, '--memory', 1)
    assert code == 1
    assert any('joints only in A: right_elbow; only in B: wrist' in verdict for verdict in result['verdicts'])
    assert any('chunks: 1 only in A and 0 only in B, beside 2 in both' in verdict for verdict in result['verdicts'])


def test_texts_and_notes_are_compared_frame_by_frame(runs, capsys):
    a, b = runs
    b.lines[2] = ['a blue cup']
    b.notes = {0: 'a cup', 1: 'a table'}
    paths = a.write(), b.write()
    code, result = compare(capsys, *paths)
    assert code == 1
    speech, notes = result['texts']['speech'], result['notes']
    assert (speech['same'], speech['different']) == (1, 1)
    assert speech['examples'] == [{'stamp_ns': START + 2 * SECOND // 5, 'a': 'nothing', 'b': 'a blue cup'}]
    assert (notes['same'], notes['only_a'], notes['only_b']) == (1, 1, 1)
    assert compare(capsys, *paths, '--texts', 0.5, '--memory', 0.7)[0] == 0
    assert compare(capsys, *paths, '--texts', 0.4, '--memory', 0.7)[0] == 1


def test_timing_is_judged_on_demand(runs, capsys):
    a, b = runs
    b.late = SECOND // 4
    paths = a.write(), b.write()
    code, result = compare(capsys, *paths)
    assert code == 0 and result['chunk_timing']['largest'] == pytest.approx(0.25)
    code, result = compare(capsys, *paths, '--timing', 0.2)
    assert code == 1 and any('timing of chunks' in verdict for verdict in result['verdicts'])
    assert compare(capsys, *paths, '--timing', 0.3)[0] == 0


def test_runs_of_another_time_are_aligned_on_demand(tmp_path, capsys):
    paths = Run(tmp_path / 'a').write(), Run(tmp_path / 'b', shift=5000 * SECOND).write()
    code, error = compare(capsys, *paths)
    assert code == 2 and 'nothing in common' in error and '--align start' in error
    code, result = compare(capsys, *paths, '--align', 'start')
    assert code == 0 and result['actions'][0]['matched'] == 3


def test_commands_of_a_person_are_a_reference(tmp_path, capsys):
    """A recording has no chunks, and its commands lie between those of the run: they are interpolated."""
    reference = Run(tmp_path / 'b', shift=SECOND // 100)
    reference.offsets = dict.fromkeys(NAMES, 0.005)  # as if it had been commanded 10 ms before
    paths = Run(tmp_path / 'a').write(), reference.write(commands='/teleop', chunks='')
    code, result = compare(capsys, *paths, '--commands-b', '/teleop', '--action-max', 1e-9, '--unmatched', 0.1,
                           '--texts', 1, '--memory', 1)
    assert code == 0, result['verdicts']
    assert [actions['basis'] for actions in result['actions']] == ['commands']
    assert result['actions'][0]['only_a'] == 1  # before the first one of the person
    code, error = compare(capsys, *paths, '--commands-b', '/nobody')
    assert code == 2 and '/teleop' in error


def test_trajectories_are_followed_until_the_next_one_begins(tmp_path, capsys):
    paths = [Run(tmp_path / name).write(commands='', chunks='/robot/joint_trajectory') for name in 'ab']
    code, result = compare(capsys, *paths)
    assert code == 0
    assert result['actions'][0]['basis'] == 'commands'
    assert result['actions'][0]['matched'] == 2 + 2 + 4  # points each 0.1 s, a trajectory each 0.2 s


def test_request_numbers_that_begin_anew_are_other_texts(tmp_path, capsys):
    def write(path, words):
        with BagWriter(path) as writer:
            for number, word in enumerate(words):
                stamp = START + number * SECOND
                writer.write('/speech', stamp, make('oxygen_ros/msg/TextChunk', header=header(stamp), request_id=1,
                                                    task='answer', delta=word, finish_reason=1))
        return path

    code, result = compare(capsys, write(tmp_path / 'a', ['one', 'two']), write(tmp_path / 'b', ['one', 'three']))
    assert code == 1 and (result['texts']['answer']['same'], result['texts']['answer']['different']) == (1, 1)


def test_table_shows_what_was_compared(runs, capsys):
    a, b = runs
    b.offsets['left_elbow'] = 0.5
    b.lines[0] = ['other']
    assert main(['compare', a.write(), b.write()]) == 1
    said = capsys.readouterr().out
    assert 'left_elbow' in said and '0.500000' in said and "A: 'a red cup'" in said and "B: 'other'" in said
    assert 'different: chunks: left_elbow differs by up to 0.5 rad' in said


@pytest.mark.parametrize('words, text', [
    (['/no/such/bag'], '/no/such/bag'), (['--action-max', '-1'], 'action_max is -1.0')])
def test_wrong_use_is_exit_code_2(runs, capsys, words, text):
    a, b = runs
    paths = [a.write(), words.pop(0) if words[0].startswith('/') else b.write()]
    assert main(['compare', *paths, *words]) == 2
    assert text in capsys.readouterr().err


def test_recording_without_outputs_is_an_error(runs, tmp_path, capsys):
    with BagWriter(tmp_path / 'c') as writer:
        writer.write('/text', START, make('std_msgs/msg/String', data='hi'))
    assert main(['compare', runs[0].write(), str(tmp_path / 'c')]) == 2
    assert 'holds nothing to compare' in capsys.readouterr().err
