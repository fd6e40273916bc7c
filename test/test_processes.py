"""Child processes end together, whatever ends first and whatever signal comes."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time

import pytest

from oxygen_ros.processes import Ended, ProcessGroup

SLEEPER = [sys.executable, '-c', 'import time; time.sleep(60)']
STUBBORN = [sys.executable, '-c', 'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); '
                                  'print("ready", flush=True); time.sleep(60)']


def failing(code: int) -> list[str]:
    return [sys.executable, '-c', f'raise SystemExit({code})']


def run_parent(body: str) -> subprocess.Popen:
    """Start a Python that runs a group of one child `child`, which prints its process id and sleeps."""
    child = 'import os, time; print("child", os.getpid(), flush=True); time.sleep(60)'
    text = f'import sys\nfrom oxygen_ros.processes import ProcessGroup\nchild = [sys.executable, "-c", {child!r}]\n'
    return subprocess.Popen([sys.executable, '-c', text + textwrap.dedent(body)], stdout=subprocess.PIPE, text=True)


def child_id(parent: subprocess.Popen) -> int:
    word, number = parent.stdout.readline().split()
    assert word == 'child'
    return int(number)


def wait_until_gone(process_id: int) -> None:
    for _ in range(400):
        try:
            os.kill(process_id, 0)
            with open(f'/proc/{process_id}/stat') as stat:
                if stat.read().rpartition(')')[2].split()[0] == 'Z':  # no one reaps it in a bare container
                    return
        except (ProcessLookupError, FileNotFoundError):
            return
        time.sleep(0.05)
    os.kill(process_id, signal.SIGKILL)
    pytest.fail(f'process {process_id} outlived its parent')


def test_children_that_are_told_to_end_are_no_failure():
    with ProcessGroup() as group:
        children = [group.start('one', SLEEPER), group.start('two', SLEEPER)]
    assert all(child.poll() is not None for child in children)
    assert group.exit_code == 0
    assert group.running == ()


def test_first_failing_child_decides_the_exit_code():
    with ProcessGroup() as group:
        group.start('sleeper', SLEEPER)
        group.start('failing', failing(3))
        assert group.wait(timeout=30)
        assert group.ended == (Ended('failing', 3),)
        assert group.running == ('sleeper',)
    assert group.exit_code == 3


def test_wait_for_several_children_and_with_a_time_limit():
    with ProcessGroup() as group:
        group.start('sleeper', SLEEPER)
        group.start('one', failing(0))
        group.start('two', failing(0))
        assert group.wait(timeout=30, count=2)
        assert {end.name for end in group.ended} == {'one', 'two'}
        assert not group.wait(timeout=0.1, count=3)
    assert group.exit_code == 0


def test_child_that_ignores_the_signal_is_killed_after_the_grace_time(capsys):
    with ProcessGroup(grace=0.2) as group:
        child = group.start('stubborn', STUBBORN, stdout=subprocess.PIPE, text=True)
        assert child.stdout.readline() == 'ready\n'
    child.stdout.close()
    assert group.exit_code == 128 + signal.SIGKILL
    assert 'stubborn did not end' in capsys.readouterr().err


def test_child_that_ends_by_a_signal_has_the_code_of_a_shell():
    with ProcessGroup() as group:
        child = group.start('child', SLEEPER)
        os.kill(child.pid, signal.SIGKILL)
        assert group.wait(timeout=30)
    assert group.ended == (Ended('child', 137),)


def test_two_children_of_one_name_are_refused():
    with ProcessGroup() as group:
        group.start('node', SLEEPER)
        with pytest.raises(ValueError, match="'node'"):
            group.start('node', SLEEPER)


def test_handlers_of_the_process_come_back():
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with ProcessGroup():
        assert signal.getsignal(signal.SIGINT) != before[0]
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_signal_to_the_parent_ends_the_children_in_an_orderly_way(number):
    with run_parent('''
        with ProcessGroup() as group:
            group.start('child', child)
            assert not group.wait() and group.stop_requested
        sys.exit(group.exit_code)
        ''') as parent:
        child = child_id(parent)
        parent.send_signal(number)
        assert parent.wait(timeout=30) == 0
    wait_until_gone(child)


def test_children_of_a_background_job_do_not_ignore_sigint():
    body = '''
        import signal
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
        with ProcessGroup() as group:
            group.start('child', [sys.executable, '-c', 'import signal; print(signal.getsignal(signal.SIGINT))'])
            group.wait()
        '''
    # As a shell does for `command &`. The ignored signal comes through exec.
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        parent = run_parent(body)
    finally:
        signal.signal(signal.SIGINT, before)
    with parent:
        assert 'default_int_handler' in parent.stdout.read()


@pytest.mark.skipif(not shutil.which('setpriv'), reason='needs setpriv of util-linux')
def test_children_end_when_the_parent_is_killed():
    with run_parent('''
        with ProcessGroup() as group:
            group.start('child', child)
            group.wait()
        ''') as parent:
        child = child_id(parent)
        parent.kill()
    wait_until_gone(child)
