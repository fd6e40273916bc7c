"""A node process ends in an orderly way, whatever ends it, and says in one line what is wrong with its arguments."""

import signal
import subprocess
import sys

import pytest

SCRIPT = '''
import argparse, sys, time
from rclpy.node import Node
from oxygen_ros.nodes.parameters import NodeParameter, declare_parameters
from oxygen_ros.nodes.runner import NodeFinished, add_node_arguments, run_node

TABLE = (NodeParameter('what', 'spin', 'What to do.'), NodeParameter('rate', 1.0, 'Rate.', 0.1))

class Tested(Node):
    def __init__(self):
        super().__init__('tested')
        self.what = declare_parameters(self, TABLE)['what']
        print('made', self.get_name(), self.get_namespace(), flush=True)
        if self.what == 'construct':
            time.sleep(60)
        self.create_timer(0.01, self.tick)

    def tick(self):
        if self.what == 'finish':
            raise NodeFinished(3)
        if self.what == 'fail':
            raise RuntimeError('a mistake')
        if self.what == 'load':
            import torch
            print('loading', flush=True)
            while True:
                torch.ones(1000, 1000) @ torch.ones(1000, 1000)
        if self.what == 'shutdown':
            self.context.shutdown()
        print('spinning', flush=True)

    def destroy_node(self):
        print('destroyed', self.context.ok(), flush=True)
        super().destroy_node()

parser = argparse.ArgumentParser()
add_node_arguments(parser, TABLE)
code = run_node(Tested, parser.parse_args())
print('ended', flush=True)
time.sleep(1.0 if code == 0 else 0.0)  # the interpreter takes its time to end
sys.exit(code)
'''


def start(*words):
    return subprocess.Popen([sys.executable, '-c', SCRIPT, *words], text=True, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE)


def finish(process):
    output, errors = process.communicate(timeout=30)
    return process.returncode, output, errors


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_signal_destroys_the_node_in_a_valid_context(ros_domain, number):
    process = start()
    while process.stdout.readline() != 'spinning\n':
        assert process.poll() is None
    process.send_signal(number)
    code, output, errors = finish(process)
    assert (code, errors) == (0, '') and output.endswith('destroyed True\nended\n')


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_signal_while_the_interpreter_ends_changes_nothing(ros_domain, number):
    process = start()
    while process.stdout.readline() != 'spinning\n':
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    while process.stdout.readline() != 'ended\n':
        assert process.poll() is None
    process.send_signal(number)
    assert finish(process)[0] == 0


BUSY = '''
import argparse, os, signal, sys, threading
from rclpy.node import Node
from oxygen_ros.nodes.runner import add_node_arguments, run_node

class Busy(Node):
    def __init__(self):
        super().__init__('busy')
        for _ in range(10):
            self.create_timer(0.0005, self.tick)
        self.armed = False

    def tick(self):
        if not self.armed:
            self.armed = True
            threading.Timer(0.02, os.kill, [os.getpid(), signal.SIGINT]).start()

parser = argparse.ArgumentParser()
add_node_arguments(parser, ())
sys.setswitchinterval(1e-5)  # threads interrupt each other everywhere
for _ in range(30):
    assert run_node(Busy, parser.parse_args([])) == 0
'''


def test_signal_ends_a_busy_node_without_an_error(ros_domain):
    process = subprocess.Popen([sys.executable, '-c', BUSY], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert finish(process) == (0, '', '')


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_signal_while_the_node_is_made_ends_at_once(ros_domain, number):
    process = start('-p', 'what:=construct')
    assert process.stdout.readline().startswith('made')
    process.send_signal(number)
    code, _, errors = finish(process)
    assert (code, errors) == (0, '')


def test_signal_in_a_long_callback_ends_the_process_in_an_orderly_way(ros_domain):
    process = start('-p', 'what:=load')
    while process.stdout.readline() != 'loading\n':
        assert process.poll() is None
    process.send_signal(signal.SIGTERM)
    code, output, errors = finish(process)
    assert (code, output, errors) == (0, 'destroyed True\n', '')


def test_node_that_finishes_gives_its_exit_code(ros_domain):
    code, output, errors = finish(start('-p', 'what:=finish'))
    assert (code, errors) == (3, '') and output.endswith('destroyed True\nended\n')


def test_mistake_in_a_callback_is_shown_and_still_destroys_the_node(ros_domain):
    code, output, errors = finish(start('-p', 'what:=fail'))
    assert code == 1 and 'RuntimeError: a mistake' in errors and 'destroyed' in output


def test_shutdown_from_elsewhere_is_an_orderly_end(ros_domain):
    code, output, errors = finish(start('-p', 'what:=shutdown'))
    assert (code, errors) == (0, '') and 'destroyed' in output


def test_namespace_remapping_and_parameter_files(ros_domain, tmp_path):
    path = tmp_path / 'parameters.yaml'
    path.write_text('/**:\n  ros__parameters:\n    what: finish\n')
    code, output, errors = finish(start('--params-file', str(path), '--namespace', 'left', '--log-level', 'warn',
                                        '--ros-args', '-r', '__node:=other', '-p', 'rate:=2.0'))
    assert (code, errors) == (3, '') and output.startswith('made other /left\n')


@pytest.mark.parametrize('words, wanted', [
    (['-p', 'wat:=spin'], "unknown parameter 'wat': did you mean what?"),
    (['--ros-args', '-p', 'wat:=spin'], "unknown parameter 'wat': did you mean what?"),
    (['-p', 'rate:=0'], "parameter 'rate': 0 is out of range: at least 0.1"),
    (['--ros-args', '-p', 'tested:rate:=0.0'], "parameter 'rate': 0 is out of range: at least 0.1"),
    (['--params-file', '/nowhere.yaml'], "parameter file '/nowhere.yaml' does not exist"),
    (['--ros-args', '--no-such-option'], '--no-such-option')])
def test_wrong_use_is_one_line_and_exit_code_2(ros_domain, words, wanted):
    code, _, errors = finish(start(*words))
    lines = [line for line in errors.splitlines() if '[rcl]' not in line]
    assert code == 2 and len(lines) == 1 and lines[0].startswith('error: ') and wanted in lines[0]
