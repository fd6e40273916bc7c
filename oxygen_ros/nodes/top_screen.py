"""What `oxygen_ros top` shows of a running suite: messages go in, a picture for the terminal comes out."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from diagnostic_msgs.msg import DiagnosticArray
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from oxygen_ros.msg import EngineStatus, MemoryEntry, TextChunk
from oxygen_ros.perception.health import Arrivals

SILENT_SECONDS = 3.0  # after which what was last heard is shown as old
MOST_TEXTS, LONGEST_TEXT = 6, 100
REASONS = {getattr(TextChunk, name): name.lower() for name in (
    'STOP', 'LENGTH', 'CANCELLED', 'SUPERSEDED', 'TIMED_OUT', 'FRAME_BUDGET', 'DROPPED', 'ERROR', 'REPETITION')}
STYLES = {0: 'green', 1: 'yellow', 2: 'bold red', 3: 'magenta'}
WORDS = {0: 'ok', 1: 'WARN', 2: 'ERROR', 3: 'STALE'}


@dataclass
class _Line:
    """A text as far as it has come."""

    task: str
    text: str = ''
    end: str = ''


class TopScreen:
    """
    Collects what the suite says. All times are seconds of one monotonic clock.

    :param now: the present time.
    """

    def __init__(self, now: float) -> None:
        self._status: EngineStatus | None = None
        self._heard = now
        self._frames = (now, 0)  # when, and the counter then
        self._frame_rate = 0.0
        self._commands, self._chunks = Arrivals(now), Arrivals(now)
        self._texts: OrderedDict[int, _Line] = OrderedDict()
        self._notes = 0
        self._note = ''
        self._parts: dict[str, tuple[int, str, float]] = {}

    def status(self, message: EngineStatus, now: float) -> None:
        """Take in the figures of the engine."""
        before, count = self._frames
        if message.frames_received >= count and now > before and self._status is not None:
            self._frame_rate = (message.frames_received - count) / (now - before)
        self._status, self._heard, self._frames = message, now, (now, message.frames_received)

    def diagnostics(self, message: DiagnosticArray, now: float) -> None:
        """Take in what the nodes say about themselves."""
        for status in message.status:
            self._parts[status.name] = status.level[0], status.message, now

    def text(self, message: TextChunk) -> None:
        """Take in a piece of text."""
        line = self._texts.setdefault(message.request_id, _Line(message.task))
        line.text += message.delta
        if message.finish_reason:
            line.end = REASONS.get(message.finish_reason, '?')
        while len(self._texts) > MOST_TEXTS:
            self._texts.popitem(last=False)

    def memory(self, message: MemoryEntry) -> None:
        """Take in a note."""
        self._notes += 1
        self._note = message.text

    def command(self, now: float) -> None:
        """Note a command."""
        self._commands.add(now)

    def chunk(self, now: float) -> None:
        """Note a chunk."""
        self._chunks.add(now)

    def render(self, now: float) -> RenderableType:
        """Return the present picture."""
        if self._status is None:
            return Group(Panel(f'nothing on status for {now - self._heard:.0f} s: does the inference node run, in this '
                               'namespace and domain?', title='oxygen_ros', style='yellow'), self._alarms(now))
        return Group(self._title(now), self._rates(now), self._cache(), self._talk(), self._alarms(now))

    def _title(self, now: float) -> RenderableType:
        status, silent = self._status, now - self._heard
        title = Text.assemble((status.model, 'bold'), f' ({status.weights}), {status.mode}, ',
                              (status.state, 'green' if status.state == 'active' else 'yellow'))
        if status.random_weights:
            title.append('; the weights are random: no output means anything', 'yellow')
        if silent > SILENT_SECONDS:
            title.append(f'; no status for {silent:.0f} s', 'bold red')
        return title

    def _rates(self, now: float) -> RenderableType:
        status = self._status
        table = Table.grid(padding=(0, 2))
        rows = (
            ('chunks', f'{status.action_rate:.2f} of {status.action_rate_set:.2f} Hz',
             f'late by ms: median {status.lateness_p50_ms:.1f}, p99 {status.lateness_p99_ms:.1f}, '
             f'most {status.lateness_max_ms:.1f}; cycle {status.cycle_ms:.1f}'),
            ('commands', f'{self._commands.rate(now):.1f} Hz', f'trajectories {self._chunks.rate(now):.1f} Hz'),
            ('frames', f'{self._frame_rate:.1f} Hz', f'prefill {status.prefill_ms:.1f}, denoise '
             f'{status.denoise_ms:.1f}, decode step {status.decode_step_ms:.1f} ms'),
            ('texts', f'{status.tokens_per_second:.0f} tokens/s',
             f'{status.running_branches} running, {status.waiting_requests} waiting, {status.texts_finished} finished, '
             f'{status.texts_unfinished} ended otherwise'),
            ('drops', f'{status.deadline_misses} misses',
             f'{status.action_failures} failed actions, {status.stale_frames} stale frames, {status.rejected_chunks} '
             f'rejected chunks, {status.notes_dropped} notes, {status.late_decodes} late decodes'))
        for name, figure, more in rows:
            table.add_row(Text(name, 'bold'), figure, more)
        return table

    def _cache(self) -> RenderableType:
        status, mib = self._status, 2**20
        table = Table.grid(padding=(0, 2))
        table.add_row(Text('KV', 'bold'), ProgressBar(max(1, status.kv_bytes_allocated), status.kv_bytes, width=30),
                      f'{status.kv_bytes / mib:.1f} of {status.kv_bytes_allocated / mib:.1f} MiB, most '
                      f'{status.kv_bytes_peak / mib:.1f}, {status.frames_resident} frames')
        return table

    def _talk(self) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        for number, line in self._texts.items():
            said = ' '.join(line.text.split())
            said = said if len(said) <= LONGEST_TEXT else '… ' + said[-LONGEST_TEXT:]
            style = 'dim' if line.end in ('stop', 'length') else 'red' if line.end else ''
            table.add_row(f'{line.task} {number}', Text(said, style), Text(line.end, style))
        if self._notes:
            table.add_row('memory', Text(self._note[:LONGEST_TEXT], 'dim'), f'{self._notes} notes')
        return Panel(table, title='texts', title_align='left')

    def _alarms(self, now: float) -> RenderableType:
        table = Table.grid(padding=(0, 2))
        shown = [(3 if now - heard > 2 * SILENT_SECONDS else level, name, text)
                 for name, (level, text, heard) in self._parts.items()]
        for level, name, text in sorted(shown, key=lambda part: (part[0] == 3, -part[0], part[1])):
            if level:
                table.add_row(Text(WORDS.get(level, '?'), STYLES.get(level, '')), name, Text(text))
        well = sum(not level for level, _, _ in shown)
        table.add_row(Text('ok', 'green'), f'{well} of {len(shown)} parts', '')
        return Panel(table, title='diagnostics', title_align='left')
