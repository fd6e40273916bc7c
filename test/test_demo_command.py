"""The command `oxygen_ros demo --bag`: what it refuses, and how it ends when something goes wrong."""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time

import psutil
import pytest

from oxygen_ros.demo.bag_settings import JOINT_STATES, OWN_BAG, BagSettings, check_bag_settings
from oxygen_ros.demo.cycles import STAGES
from oxygen_ros.demo.domain import free_domain
from oxygen_ros.demo.main import add_arguments
from oxygen_ros.demo.view import RANDOM_WEIGHTS
from oxygen_ros.errors import ConfigError


def demo(*words, **options):
    return subprocess.Popen([sys.executable, '-m', 'oxygen_ros', 'demo', *words], text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, **options)


def settings(tmp_path, **changes):
    values = {'bag': tmp_path, 'output': tmp_path / 'out', 'duration': 10.0, 'mode': 'shared_kv', 'model': 'tiny',
              'robot': 'unitree_g1', 'topics': ('/camera/head/image_raw/compressed', JOINT_STATES)}
    return BagSettings(**{**values, **changes})


@pytest.mark.parametrize('words, named', [
    (['--bag', 'no_such_bag'], 'no_such_bag'), (['--bag', '--model', 'no_such_model'], 'no_such_model'),
    (['--bag', '--robot', 'no_such_robot'], 'no_such_robot'), (['--bag', '--duration', '1'], 'duration 1'),
    (['--bag', '--interactive'], '--interactive')])
def test_a_wrong_argument_is_one_line_and_exit_code_2(words, named, tmp_path):
    process = demo(*words, '--output', str(tmp_path / 'out'))
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2
    assert len(err.splitlines()) == 1 and err.startswith('error: ') and named in err
    assert not (tmp_path / 'out').exists()


def test_an_output_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / 'file').touch()
    with pytest.raises(ConfigError, match='file/out'):
        settings(tmp_path, output=tmp_path / 'file' / 'out').prepare()


def test_results_of_an_earlier_run_go_and_other_files_stay(tmp_path):
    run = settings(tmp_path)
    run.prepare()
    for path in (run.summary, run.timeline, run.trace, run.memory, run.output / 'memory.db-wal', run.output / 'mine'):
        path.touch()
    run.prepare()
    assert not run.summary.exists() and not run.memory.exists() and not (run.output / 'memory.db-wal').exists()
    assert (run.output / 'mine').exists()


def test_only_the_inputs_of_the_robot_are_played():
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    assert set(check_bag_settings(parser.parse_args(['--bag'])).topics) == {
        '/camera/head/image_raw/compressed', '/camera/front/image_raw/compressed', JOINT_STATES}


def test_the_nodes_get_the_settings_as_parameters(tmp_path):
    commands = settings(tmp_path, parameters=('speech.rate:=8',)).commands()
    assert tuple(commands) == BagSettings.nodes
    assert f'memory.path:={tmp_path}/out/memory.db' in commands['inference']
    assert 'mode:=shared_kv' in commands['inference'] and 'allow_random_weights:=true' in commands['inference']
    assert 'speech.rate:=8' in commands['inference'] and 'speech.rate:=8' not in commands['perception']
    assert f'topics:=/camera/head/image_raw/compressed,{JOINT_STATES}' in commands['replay']


def test_a_domain_in_which_a_participant_runs_is_not_chosen(monkeypatch):
    taken, free = free_domain(), free_domain()
    while free == taken:
        free = free_domain()
    monkeypatch.setattr('oxygen_ros.demo.domain.random.sample', lambda domains, count: [taken, free])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as participant:
        participant.bind(('', 7400 + 250 * taken + 10))
        assert free_domain() == free


def test_a_node_that_ends_is_reported_with_its_last_lines_and_exit_code_1(tmp_path):
    broken = tmp_path / 'broken.yaml'
    broken.write_text('family: tiny\n')
    process = demo('--bag', str(OWN_BAG), '--model', str(broken), '--output', str(tmp_path / 'out'), '--plain')
    out, err = process.communicate(timeout=120)
    assert process.returncode == 1
    assert 'failed: node inference ended with exit code' in err and 'broken.yaml lacks layout' in err
    assert 'Traceback' not in err


def test_ctrl_c_ends_the_nodes_without_a_traceback(tmp_path):
    process = demo('--bag', '--output', str(tmp_path / 'out'), '--plain', start_new_session=True,
                   env={**os.environ, 'PYTHONUNBUFFERED': '1'})
    while 'waiting for' not in process.stdout.readline():
        assert process.poll() is None
    children = psutil.Process(process.pid).children()
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert 'Traceback' not in out + err
    assert len(children) == len(BagSettings.nodes)
    assert not any(child.is_running() for child in children)


def test_a_whole_run_writes_its_results_and_prints_the_summary(tmp_path):
    process = demo('--bag', '--duration', '10', '--output', str(tmp_path), '--json')
    out, err = process.communicate(timeout=200)
    assert process.returncode == 0, err
    summary = json.loads(out)
    assert summary == json.loads((tmp_path / 'summary.json').read_text())
    assert summary['random_weights'] and summary['note'] == RANDOM_WEIGHTS and RANDOM_WEIGHTS in err
    assert summary['cycles'] > 0 and summary['texts_finished'] > 0 and summary['memory_entries'] > 0
    assert summary['kv_bytes_peak'] > 0 and set(summary['stage_median_ms']) == set(STAGES)
    assert [question['cancelled'] for question in summary['questions']].count(True) <= 1
    assert (tmp_path / 'timeline.png').read_bytes().startswith(b'\x89PNG')
    assert {path.name for path in tmp_path.iterdir()} >= {
        'trace.json', 'memory.db', 'replay.log', 'perception.log', 'inference.log'}
