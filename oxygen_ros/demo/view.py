"""View: the live picture of the demo in the terminal, and its short form for logs."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text as Styled

from oxygen_ros.demo.events import Verdict
from oxygen_ros.demo.record import Milestone, Question, Record, live_rate

RANDOM_WEIGHTS = 'random weights: words without meaning'
LEVELS = {0: ('ok', 'green'), 1: ('warning', 'yellow'), 2: ('error', 'red'), 3: ('stale', 'yellow')}
VERDICT_STYLES = {Verdict.TRUE: 'green', Verdict.FALSE: 'red', Verdict.OPEN: ''}
MEBIBYTE = 2**20
SHOWN_CHARACTERS = 100  # of one text


@dataclass(frozen=True)
class Show:
    """
    What is shown beside the record.

    :param title: what runs. :param duration: seconds that are measured.
    :param now: this moment. :param doing: the last line of a node's log while it sets up.
    :param speed: of the time of the nodes lately; their rates are per second of that.
    """

    title: str
    duration: float
    now: float
    doing: str = ''
    speed: float = 1.0

    def rate(self, times: list[float]) -> float:
        """Return events per second of the nodes' time lately."""
        return live_rate(times, self.now) / self.speed


def render(record: Record, show: Show) -> RenderableType:
    """Return the live view. The caller holds the lock of the record."""
    parts: list[RenderableType] = [Styled(show.title, style='bold')]
    if is_random(record):
        parts.append(Styled(f'*** {RANDOM_WEIGHTS} ***', style='bold red', justify='center'))
    if not record.chunks or record.status is None:
        parts.append(progress(record, show))
        return Group(*parts)
    columns = Table.grid(expand=True)
    columns.add_column(ratio=2)
    columns.add_column(ratio=3)
    columns.add_row(Panel(figures(record, show), title='engine'),
                    Panel(_words(record), title='texts', subtitle=RANDOM_WEIGHTS if is_random(record) else None))
    elapsed = min(show.now - record.chunks[0], show.duration)
    bar = Table.grid(expand=True)
    bar.add_column(ratio=1)
    bar.add_column(width=14, justify='right')
    bar.add_row(ProgressBar(total=show.duration, completed=elapsed), f'{elapsed:.0f} of {show.duration:.0f} s')
    return Group(*parts, bar, columns, Panel(inputs(record), title='inputs, and what is not well'))


def plain_line(record: Record, show: Show) -> str:
    """Return the state in one line. The caller holds the lock of the record."""
    since = f'[{show.now - record.started:5.1f} s]'
    status = record.status
    if not record.chunks or status is None:
        waiting = next((each.value for each in Milestone if each not in record.reached), 'status')
        return f'{since} waiting for: {waiting}' + (f' ({show.doing})' if show.doing else '')
    line = (f'{since} actions {show.rate(record.chunks):.2f}/{status.action_rate_set:.2f} Hz, '
            f'cycle {status.cycle_ms:.1f} ms, lateness p99 {status.lateness_p99_ms:+.1f} ms, '
            f'{status.tokens_per_second:.0f} tokens/s, {status.running_branches} texts running, '
            f'KV {status.kv_bytes / MEBIBYTE:.1f} MiB')
    if record.sentences:
        line += f'; said{" (random words)" if is_random(record) else ""}: {cut(record.sentences[-1], 60)}'
    return line


def is_random(record: Record) -> bool:
    """Whether what is said means nothing."""
    return record.status is not None and record.status.random_weights


def progress(record: Record, show: Show) -> RenderableType:
    """Show what has been reached while the nodes set up."""
    table = Table.grid(padding=(0, 2))
    missing = True
    for milestone in Milestone:
        if milestone in record.reached:
            table.add_row('[green]✓[/]', milestone.value, f'after {record.reached[milestone] - record.started:.1f} s')
        elif missing:
            table.add_row('…', milestone.value, f'{show.now - record.started:.0f} s')
            missing = False
        else:
            table.add_row('', Styled(milestone.value, style='dim'), '')
    return Panel(Group(table, Styled(show.doing, style='dim', overflow='ellipsis', no_wrap=True)), title='setting up')


def figures(record: Record, show: Show) -> Table:
    """Show what the engine does."""
    status = record.status
    table = Table.grid(padding=(0, 1))
    table.add_column(style='dim')
    table.add_column()
    table.add_row('actions', f'{show.rate(record.chunks):.2f} of {status.action_rate_set:.2f} Hz')
    table.add_row('cycle', f'{status.cycle_ms:.1f} ms')
    table.add_row('lateness', f'{status.lateness_p50_ms:+.0f}, p99 {status.lateness_p99_ms:+.0f} ms')
    table.add_row('missed', f'{status.deadline_misses} deadlines')
    table.add_row('text', f'{status.tokens_per_second:.0f} tokens/s')
    table.add_row('branches', f'{status.running_branches} run, {status.waiting_requests} wait')
    table.add_row('KV', f'{status.kv_bytes / MEBIBYTE:.1f} MiB, peak {status.kv_bytes_peak / MEBIBYTE:.1f}')
    table.add_row('commands', f'{show.rate(record.commands):.1f} Hz')
    return table


def _words(record: Record) -> Table:
    table = Table.grid(padding=(0, 1))
    table.add_column(style='dim')
    table.add_column()
    table.add_row('said', _styled(record.sentences[-1] if record.sentences else ''))
    question = record.questions[-1] if record.questions else None
    table.add_row('asked', _styled(question.question if question else ''))
    table.add_row('answer', _styled(answer_so_far(record, question) if question else ''))
    note = record.note
    table.add_row('memory', _styled(f'{note.text} (seen {note.count}×)' if note else ''))
    return table


def answer_so_far(record: Record, question: Question) -> str:
    """Return the answer in as far as it is there, with a mark if it was cancelled or refused."""
    if question.accepted is False:
        return f'[refused: {question.message}]'
    text = record.answer_of(question)
    words = text.text if text else question.answer
    return f'{words} [{text.finish}]' if text and text.finish not in ('', 'stop', 'length') else words


def inputs(record: Record) -> Table:
    """Show the state of the inputs, and of the rest what is not well."""
    table = Table.grid(padding=(0, 2))
    for name, (level, message) in sorted(record.diagnostics.items()):
        if level or name.startswith('perception'):
            word, color = LEVELS.get(level, ('?', 'red'))
            table.add_row(Styled(word, style=color), _styled(name), _styled(message))
    return table


def _styled(text: str) -> Styled:
    """Return foreign text as it is: it must not be read as markup."""
    return Styled(cut(text, SHOWN_CHARACTERS))


def cut(text: str, length: int) -> str:
    """Return a text in one line of at most so many characters."""
    text = ' '.join(text.split())
    return text if len(text) <= length else text[:length - 1] + '…'
