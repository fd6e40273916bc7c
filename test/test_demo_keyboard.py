"""Lines from a pipe and from a terminal reach the demo, and end in an orderly way."""

from __future__ import annotations

import os
import pty
import select
import subprocess
import sys
import time

import pytest

READER = '''
import sys, time
from oxygen_ros.demo.keyboard import open_keyboard
with open_keyboard(lambda: 'toolbar: 3 Hz') as keyboard:
    print(type(keyboard).__name__, flush=True)
    end = time.monotonic() + float(sys.argv[1])
    while not keyboard.ended and time.monotonic() < end:
        if keyboard.waiting and (line := keyboard.next_line()) is not None:
            print('got', line.strip(), flush=True)
        time.sleep(0.02)
print('ended' if keyboard.ended else 'closed', flush=True)
'''


class Terminal:
    """A process with a terminal of its own."""

    def __init__(self, seconds: str) -> None:
        self.master, slave = pty.openpty()
        self.process = subprocess.Popen([sys.executable, '-c', READER, seconds], stdin=slave, stdout=slave,
                                        stderr=slave, start_new_session=True, env={**os.environ, 'TERM': 'xterm'})
        os.close(slave)
        self.output = ''

    def read_until(self, text: str, seconds: float = 40.0) -> bool:
        """Read what is printed until a text comes; answers where the cursor is, as terminals do."""
        end = time.monotonic() + seconds
        while text not in self.output and time.monotonic() < end:
            if not select.select([self.master], [], [], 0.1)[0]:
                continue
            try:
                data = os.read(self.master, 4096).decode(errors='replace')
            except OSError:  # the other side is closed
                break
            self.output += data
            if '\x1b[6n' in data:
                self.type('\x1b[1;1R')
        return text in self.output

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def close(self) -> int:
        os.close(self.master)
        self.process.kill()
        return self.process.wait()


@pytest.fixture
def terminal():
    pytest.importorskip('prompt_toolkit')
    terminal = Terminal('60')
    yield terminal
    terminal.close()


def test_lines_of_a_pipe_come_in_order_and_its_end_ends():
    result = subprocess.run([sys.executable, '-c', READER, '60'], input='rest\nwhere?\n', capture_output=True,
                            text=True)
    assert result.stdout.splitlines() == ['Keyboard', 'got rest', 'got where?', 'ended']


@pytest.mark.parametrize('end', ['\x04', '\x03'], ids=['ctrl-d', 'ctrl-c'])
def test_a_terminal_gives_lines_below_what_is_printed_until_ctrl_d_or_ctrl_c(terminal, end):
    assert terminal.read_until('toolbar: 3 Hz'), terminal.output
    terminal.type('go to the red cubr\x7fe\r')
    assert terminal.read_until('got go to the red cube'), terminal.output
    for _ in range(10):  # while something is printed the terminal is not raw for a moment, and a key may be lost
        terminal.type(end)
        if terminal.read_until('ended', 3.0):
            break
    assert 'ended' in terminal.output, terminal.output
    assert 'Traceback' not in terminal.output and terminal.process.wait(timeout=20) == 0


def test_a_terminal_is_given_back_when_the_demo_ends_first():
    pytest.importorskip('prompt_toolkit')
    terminal = Terminal('2')
    try:
        assert terminal.read_until('closed'), terminal.output
        assert terminal.process.wait(timeout=20) == 0 and 'Traceback' not in terminal.output
    finally:
        terminal.close()
