"""The command line: what it lists, what it imports, how it fails."""

from __future__ import annotations

import os
import subprocess
import sys
from types import ModuleType

import pytest

from oxygen_ros import cli, up
from oxygen_ros.errors import BagError


@pytest.fixture
def fake_subcommand(monkeypatch):
    """Return a function that makes the subcommand `fake` do what a given function does."""
    def make(main):
        module = ModuleType('oxygen_ros_fake')
        module.add_arguments = lambda parser: parser.add_argument('--number', type=int, default=0)
        module.main = main
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(cli.SUBCOMMANDS, 'fake', (module.__name__, 'do nothing'))
    return make


def raising(error: BaseException):
    def main(_):
        raise error
    return main


def one_error_line(capsys) -> str:
    output = capsys.readouterr()
    assert output.out == ''
    assert output.err.startswith('error: ') and output.err.count('\n') == 1
    return output.err


def test_help_lists_every_subcommand(capsys):
    with pytest.raises(SystemExit, match='^0$'):
        cli.main(['--help'])
    text = capsys.readouterr().out
    for name, (_, summary) in cli.SUBCOMMANDS.items():
        assert name in text and summary in text


@pytest.mark.parametrize(('words', 'hint'), [(['repaly'], "did you mean 'replay'?"), (['zzz'], 'choose one of demo')])
def test_unknown_subcommand_is_wrong_use(capsys, words, hint):
    assert cli.main(words) == 2
    assert hint in one_error_line(capsys)


@pytest.mark.parametrize('words', [[], ['--nonsense'], ['replay', '--nonsense'], ['up', '--mode', 'quick']])
def test_wrong_words_are_wrong_use(capsys, words):
    with pytest.raises(SystemExit, match='^2$'):
        cli.main(words)
    assert 'error: ' in capsys.readouterr().err


def test_exit_code_and_arguments_of_a_subcommand(fake_subcommand):
    fake_subcommand(lambda arguments: arguments.number)
    assert cli.main(['fake', '--number', '1']) == 1


def test_error_that_the_user_can_mend_is_one_line(capsys, fake_subcommand):
    fake_subcommand(raising(BagError('bag "x"\ndoes not exist')))
    assert cli.main(['fake']) == 2
    assert one_error_line(capsys) == 'error: bag "x" does not exist\n'


def test_interrupt_is_silent(capsys, fake_subcommand):
    fake_subcommand(raising(KeyboardInterrupt()))
    assert cli.main(['fake']) == 130
    assert capsys.readouterr() == ('', '')


@pytest.mark.parametrize(('missing', 'remedy'), [
    ('rclpy', 'setup file of ROS 2'), ('trajectory_msgs', 'setup file of ROS 2'),
    ('oxygen_ros.msg', 'setup file of ROS 2'), ('torch', 'pip')])
def test_missing_package_is_one_line(capsys, fake_subcommand, missing, remedy):
    fake_subcommand(raising(ModuleNotFoundError(f'No module named {missing!r}', name=missing)))
    assert cli.main(['fake']) == 2
    line = one_error_line(capsys)
    assert repr(missing) in line and remedy in line


def test_missing_module_of_our_own_is_a_bug_and_not_hidden(fake_subcommand):
    fake_subcommand(raising(ModuleNotFoundError('no', name='oxygen_ros.engine.typo')))
    with pytest.raises(ModuleNotFoundError):
        cli.main(['fake'])


@pytest.mark.parametrize('name', ['up', 'replay', 'perception'])
def test_help_needs_no_torch(name):
    program = ('import sys\nfrom oxygen_ros.cli import main\n'
               f'try:\n    main([{name!r}, "--help"])\nexcept SystemExit as end:\n    assert end.code == 0\n'
               'assert "torch" not in sys.modules\n')
    run = subprocess.run([sys.executable, '-c', program], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert f'usage: oxygen_ros {name}' in run.stdout


def test_output_into_a_closed_pipe_makes_no_traceback():
    reading, writing = os.pipe()
    os.close(reading)
    program = ('import sys\nfrom types import ModuleType\nfrom oxygen_ros import cli\n'
               'm = sys.modules["m"] = ModuleType("m")\n'
               'm.add_arguments = lambda parser: None\nm.main = lambda _: print("x", flush=True)\n'
               'cli.SUBCOMMANDS["m"] = ("m", "print")\nsys.exit(cli.main(["m"]))\n')
    run = subprocess.run([sys.executable, '-c', program], stdout=writing, stderr=subprocess.PIPE, text=True)
    os.close(writing)
    assert (run.returncode, run.stderr) == (1, '')


def test_module_runs_like_the_console_script():
    run = subprocess.run([sys.executable, '-m', 'oxygen_ros', 'repaly'], capture_output=True, text=True)
    assert run.returncode == 2
    assert run.stderr.startswith("error: unknown subcommand 'repaly'")


class TestUp:
    """`oxygen_ros up` without its real nodes."""

    @pytest.fixture(autouse=True)
    def commands(self, monkeypatch):
        """Run these Python programs instead of the nodes."""
        self.programs = dict.fromkeys(('perception', 'inference', 'replay'), 'import time; time.sleep(60)')
        monkeypatch.setattr(up, 'command', lambda run, _: [sys.executable, '-c', self.programs[run.name]])

    def test_failing_child_ends_all_with_its_code(self, capfd):
        self.programs['inference'] = 'import sys; print("error: no such model", file=sys.stderr); sys.exit(2)'
        assert cli.main(['up']) == 2
        assert 'inference ended with exit code 2; stopping the other nodes' in capfd.readouterr().err

    def test_end_of_the_recording_ends_all(self, tmp_path):
        self.programs['replay'] = ''
        assert cli.main(['up', '--bag', str(tmp_path)]) == 0

    def test_nodes_are_kept_at_the_end_of_the_recording_if_asked(self, tmp_path, capfd):
        self.programs['replay'] = ''
        self.programs['perception'] = 'import time; time.sleep(1.5); raise SystemExit(4)'
        assert cli.main(['up', '--bag', str(tmp_path), '--at-end', 'keep']) == 4
        assert 'the other nodes keep running' in capfd.readouterr().err

    @pytest.mark.parametrize('words', [
        ['--params-file', 'none.yaml'], ['--bag', 'none'], ['--bag', '.', '--rate', 'quick']])
    def test_wrong_argument_is_one_line_and_starts_nothing(self, capsys, words):
        assert cli.main(['up', *words]) == 2
        assert words[-1] in one_error_line(capsys)
