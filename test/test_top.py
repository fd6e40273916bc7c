"""The live view shows what the suite said: figures, texts, alarms, and that nothing is heard any more."""

import io

import pytest
from builtin_interfaces.msg import Duration
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus

from oxygen_ros.cli import main
from oxygen_ros.msg import EngineStatus, MemoryEntry, TextChunk

console = pytest.importorskip('rich.console', reason='the optional part demo is not installed')
from oxygen_ros.nodes.top_screen import TopScreen  # noqa: E402

MIB = 2**20


def recorded_status(**changes):
    return EngineStatus(**{
        'model': 'tiny', 'weights': 'random, seed 0', 'mode': 'continuous_batching', 'state': 'active',
        'random_weights': True, 'window': Duration(sec=10), 'action_rate_set': 5.0, 'action_rate': 4.98,
        'lateness_p50_ms': -12.5, 'lateness_p99_ms': 3.25, 'lateness_max_ms': 7.75, 'cycle_ms': 31.5,
        'tokens_per_second': 66.0, 'running_branches': 3, 'waiting_requests': 2, 'frames_resident': 4,
        'kv_bytes': 20 * MIB, 'kv_bytes_peak': 25 * MIB, 'kv_bytes_allocated': 40 * MIB, 'kv_bytes_budget': 1024 * MIB,
        'deadline_misses': 6, 'action_failures': 11, 'stale_frames': 1, 'rejected_chunks': 9, 'notes_dropped': 8,
        'frames_received': 100,
        **changes})


def shown(screen, now):
    """Return the lines that a terminal would show."""
    recorder = console.Console(width=160, record=True, file=io.StringIO())
    recorder.print(screen.render(now))
    return recorder.export_text()


def test_figures_of_the_engine_are_shown():
    screen = TopScreen(0.0)
    screen.status(recorded_status(), 1.0)
    screen.status(recorded_status(frames_received=130), 4.0)
    for i in range(100):
        screen.command(2.0 + i * 0.02)
    text = shown(screen, 4.0)
    for words in ('tiny (random, seed 0), continuous_batching, active', 'weights are random', '4.98 of 5.00 Hz',
                  'p99 3.2', '10.0 Hz', '50.0 Hz', '66 tokens/s', '3 running, 2 waiting', '20.0 of 40.0 MiB',
                  '6 misses', '11 failed actions', '9 rejected chunks', '8 notes'):
        assert words in text, (words, text)


def test_texts_grow_piece_by_piece_and_say_how_they_ended():
    screen = TopScreen(0.0)
    screen.status(recorded_status(), 1.0)
    for number in range(1, 9):
        screen.text(TextChunk(request_id=number, task='answer', delta='a cup '))
        screen.text(TextChunk(request_id=number, task='answer', delta=f'number {number}',
                              finish_reason=TextChunk.TIMED_OUT if number == 8 else TextChunk.STOP))
    screen.text(TextChunk(request_id=8, task='answer', delta='[bold]'))  # no markup
    screen.memory(MemoryEntry(text='the table is empty'))
    text = shown(screen, 1.0)
    assert 'answer 7' in text and 'a cup number 7' in text and 'timed_out' in text and '[bold]' in text
    assert 'number 2' not in text and 'the table is empty' in text and '1 notes' in text


def test_alarms_come_worst_first_and_what_is_not_heard_any_more_is_stale():
    screen = TopScreen(0.0)
    screen.status(recorded_status(), 1.0)
    screen.diagnostics(DiagnosticArray(status=[
        DiagnosticStatus(level=b'\x01', name='inference: actions', message='slow'),
        DiagnosticStatus(level=b'\x00', name='inference: frames', message='fine'),
        DiagnosticStatus(level=b'\x02', name='inference: engine', message='no cycle ended for 11.0 s')]), 1.0)
    text = shown(screen, 1.5)
    assert text.index('no cycle ended for 11.0 s') < text.index('slow') and 'fine' not in text
    assert '1 of 3 parts' in text and 'no status' not in text
    text = shown(screen, 20.0)
    assert text.count('STALE') == 3 and 'no status for 19 s' in text


def test_without_a_suite_it_says_what_is_missing(ros_domain, capsys):
    assert main(['top', '--seconds', '0.5', '--namespace', 'robot1']) == 0
    assert 'does the inference node run' in capsys.readouterr().out
