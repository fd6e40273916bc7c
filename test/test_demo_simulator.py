"""`oxygen_ros demo` in the simulator: its settings, its script, and a whole run that a pipe talks to."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from demo_truth import SECOND
from rich.console import Console

from oxygen_ros.demo import simulator_settings
from oxygen_ros.demo.conversation import Act
from oxygen_ros.demo.events import Kind, Verdict
from oxygen_ros.demo.main import add_arguments
from oxygen_ros.demo.record import Record
from oxygen_ros.demo.simulator_settings import SimulatorSettings, check_simulator_settings
from oxygen_ros.demo.stage import blocks, event_line, render_stage
from oxygen_ros.demo.view import RANDOM_WEIGHTS, Show
from oxygen_ros.errors import ConfigError
from oxygen_ros.msg import EngineStatus
from oxygen_ros.simulation import language
from oxygen_ros.simulation.asking import read_question
from oxygen_ros.simulation.scene import sample_scene
from oxygen_ros.simulation.simulation import Truth


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


@pytest.fixture
def can_render(monkeypatch):
    monkeypatch.setattr(simulator_settings, 'find_spec', lambda name: True)
    monkeypatch.setattr(simulator_settings, 'robot_folder', lambda: None)
    monkeypatch.setattr(simulator_settings, 'choose_backend', lambda: 'egl')


@pytest.mark.parametrize(('words', 'named'), [
    (['--robot', 'unitree_g1'], 'unitree_g1'), (['--model', 'no_such_model'], 'no_such_model'),
    (['--seed', '-1'], 'seed -1'), (['--speed', '0'], 'speed 0'), (['--duration', '0'], 'duration 0')])
def test_a_wrong_value_is_named(can_render, words, named):
    with pytest.raises(ConfigError, match=named):
        check_simulator_settings(parsed(*words))


def test_without_opengl_it_says_what_to_install_and_that_there_is_another_demo(can_render, monkeypatch):
    def fails():
        raise ConfigError('neither EGL nor OSMesa works here; apt install libegl1')

    monkeypatch.setattr(simulator_settings, 'choose_backend', fails)
    with pytest.raises(ConfigError, match='apt install libegl1.*make demo-bag'):
        check_simulator_settings(parsed())


def test_the_nodes_get_the_settings_and_the_parameters_of_the_policy(can_render, tmp_path):
    settings = check_simulator_settings(parsed(
        '--seed', '7', '--checkpoint', 'weights', '--output', str(tmp_path), '-p', 'speech.rate:=2.0'))
    commands = settings.commands()
    assert tuple(commands) == SimulatorSettings.nodes
    for words in commands.values():
        assert Path(words[words.index('--params-file') + 1]).name == 'simulation.yaml'
    assert {'seed:=7', 'simulated_time:=true', 'truth_rate:=10.0', 'view_rate:=10.0'} <= set(commands['simulator'])
    assert {'model:=openarm', 'checkpoint:=weights', 'use_sim_time:=true', f'memory.path:={tmp_path}/memory.db',
            'speech.rate:=2.0', 'instruction:=rest'} <= set(commands['inference'])
    assert 'use_sim_time:=true' in commands['perception']


class Acting:
    """In place of monitor and nodes: a robot that knows everything, or nothing, and its simulator."""

    def __init__(self, run, knows: bool) -> None:
        self.run, self.ledger, self.knows = run, run.ledger, knows
        self.record = Record(started=0.0)
        self.objects = tuple(item.with_pixels(150) for item in sample_scene(np.random.default_rng(5)).objects)
        self.tip = np.zeros(3)
        self.pass_time(0.1)

    def pass_time(self, seconds, condition=lambda: False):
        for _ in range(round(10 * seconds)):
            if condition():
                return
            self.ledger.take_truth(self.ledger.now_ns + SECOND // 10, Truth(
                self.objects, {'left': self.tip, 'right': np.ones(3)}, np.zeros(14), 0.0 if self.knows else 0.9), 0.0)

    def act(self, step):
        if step.act is Act.INSTRUCT:
            self.ledger.instructed(step.words)
            kind, name = language.read_instruction(step.words)
            item = next((item for item in self.objects if item.name == name), None)
            self.tip = np.array(item.point_above if item and self.knows else np.zeros(3))
        else:
            right = read_question(step.words, self.objects).answer
            self.ledger.answered(self.ledger.asked(step.words), step.words, right if self.knows else 'w273', 'stop',
                                 self.ledger.now_ns)

    def recall(self, words):
        note = language.note(self.objects).text
        self.ledger.recalled(words, [(note if self.knows else 'w273', 1, self.ledger.now_ns)])


@pytest.mark.parametrize('knows', [True, False])
def test_the_script_is_played_and_the_verdicts_are_those_of_the_policy(can_render, tmp_path, monkeypatch, knows):
    from oxygen_ros.demo.scripted_run import ScriptedRun
    run = ScriptedRun(check_simulator_settings(parsed('--output', str(tmp_path))), Console(quiet=True), live=False)
    acting = Acting(run, knows)
    monkeypatch.setattr(run, '_pass', lambda monitor, seconds, condition=lambda: False: acting.pass_time(
        seconds, condition))
    run._happen(acting)
    verdict = Verdict.TRUE if knows else Verdict.FALSE
    judged = [event for event in run.ledger.events if event.kind in (Kind.DID, Kind.ANSWERED, Kind.RECALLED)]
    assert {event.verdict for event in judged} == {verdict}
    assert [event.kind for event in judged].count(Kind.DID) == 4 == len(run.ledger.told)
    assert sum(event.kind is Kind.ANSWERED for event in judged) >= 5 and judged[-1].kind is Kind.RECALLED
    assert {told.outcome for told in run.ledger.told} == ({'success'} if knows else {'missed', 'not_at_rest'})
    longest = 4 * 8 if knows else 4 * 10
    assert run.ledger.now_ns < longest * SECOND


def test_the_live_view_shows_events_with_marks_and_a_picture(can_render, tmp_path):
    from oxygen_ros.demo.scripted_run import ScriptedRun
    run = ScriptedRun(check_simulator_settings(parsed('--output', str(tmp_path))), Console(quiet=True), live=False)
    acting = Acting(run, True)
    run.ledger.asked('where is [red] cube')
    run.ledger.noted(language.note(acting.objects).text, run.ledger.now_ns, True)
    acting.record.take_chunk(1.0)
    acting.record.take_status(EngineStatus(random_weights=True, action_rate_set=5.0), 1.0)
    console = Console(width=140, record=True, file=open('/dev/null', 'w'), color_system='truecolor')
    picture = np.zeros((480, 640, 3), np.uint8)
    picture[:, 320:] = 255
    console.print(render_stage(acting.record, run.ledger, picture, Show('demo', 60.0, now=2.0)))
    text = console.export_text()
    assert 'where is [red] cube' in text and '✓' in text and RANDOM_WEIGHTS in text and '▀' * 44 in text
    first = blocks(picture, 8).spans
    assert first[0].style.color.triplet == (0, 0, 0) and first[-1].style.bgcolor.triplet == (255, 255, 255)
    assert event_line(run.ledger.events[-1]).plain.startswith('noted    ')


def test_a_sentence_that_the_policy_does_not_know_is_done_and_said_to_be_so(can_render, tmp_path, capsys):
    from oxygen_ros.demo.interactive_run import InteractiveRun
    run = InteractiveRun(check_simulator_settings(parsed('--interactive', '--output', str(tmp_path))), Console(), False)
    acting = Acting(run, True)
    for text in ('go home', 'how many objects are there?', 'remember?'):
        assert run.enter(acting, text)
    assert 'not trained' not in capsys.readouterr().out
    assert run.enter(acting, 'dance') and 'not trained' in capsys.readouterr().out
    assert [told.words for told in run.ledger.told] == ['go home', 'dance']
    assert not run.enter(acting, 'quit')


LINES = '''help
go to the red cube
wait 1.5
where is the red cube?
remember?
look
stop
scene 1
wait 0.6
'''


def test_a_pipe_talks_to_the_whole_suite_and_random_weights_are_called_so(renders, tmp_path):
    result = subprocess.run([sys.executable, '-m', 'oxygen_ros', 'demo', '--interactive', '--output', str(tmp_path),
                             '--json', '--seed', '3', '--model', str(random_model(tmp_path))],
                            input=LINES, capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stderr
    assert 'Traceback' not in result.stderr
    summary = json.loads(result.stdout)
    assert summary == json.loads((tmp_path / 'summary.json').read_text())
    assert summary['random_weights'] and RANDOM_WEIGHTS in result.stderr
    assert summary['scene'] == ['cyan cube near right', 'red ball near left']  # of the last one
    told, = summary['told']
    assert (told['instruction'], told['outcome']) == ('go to the red cube', 'cut short')
    answer, = summary['answers']
    assert answer['question'] == 'where is the red cube' and answer['true'] is not True
    assert 'the robot holds' in result.stderr and 'remember the red cube?' in result.stderr  # stop, help
    assert cv2.imread(str(tmp_path / 'look.png')).shape == (480, 640, 3)
    video = cv2.VideoCapture(str(tmp_path / summary['video']['file']))
    assert video.get(cv2.CAP_PROP_FRAME_COUNT) == summary['video']['frames'] >= 15
    assert video.get(cv2.CAP_PROP_FRAME_WIDTH) == summary['video']['width']
    assert (tmp_path / 'timeline.png').read_bytes().startswith(b'\x89PNG')
    assert {'memory.db', 'trace.json', 'simulator.log', 'perception.log', 'inference.log'} <= {
        path.name for path in tmp_path.iterdir()}


def test_ctrl_c_while_it_starts_ends_the_nodes_without_a_traceback(renders, tmp_path):
    process = subprocess.Popen([sys.executable, '-u', '-m', 'oxygen_ros', 'demo', '--plain', '--output', str(tmp_path)],
                               text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)
    while 'waiting for' not in process.stdout.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130 and 'Traceback' not in out + err


def random_model(folder: Path) -> Path:
    """Return the model file of the small policy without a checkpoint: random weights, whatever is shipped."""
    source = Path(simulator_settings.config_file('models', 'openarm'))
    lines = [line for line in source.read_text().splitlines() if not line.startswith('checkpoint')]
    path = folder / 'random_openarm.yaml'
    path.write_text('\n'.join(lines) + '\n')
    return path
