"""Stage: the live picture of the demo in the simulator, and its events as lines."""

from __future__ import annotations

from collections.abc import Sequence

import cv2
import numpy as np
from rich.color import Color
from rich.console import Group, RenderableType
from rich.panel import Panel
from rich.style import Style
from rich.table import Table
from rich.text import Text as Styled

from oxygen_ros.demo.events import Event, Kind
from oxygen_ros.demo.ledger import Ledger
from oxygen_ros.demo.record import Record
from oxygen_ros.demo.view import RANDOM_WEIGHTS, VERDICT_STYLES, Show, figures, inputs, is_random, progress

COLUMNS = 44  # characters that a picture of the scene is wide
SHOWN_EVENTS, LOOKED_AT = 14, 60
LABEL = 9


def render_stage(record: Record, ledger: Ledger, picture: np.ndarray | None, show: Show) -> RenderableType:
    """
    Return the live view. The caller holds the lock of the record.

    :param picture: of the scene, uint8 [height, width, 3] RGB.
    """
    parts: list[RenderableType] = [Styled(show.title, style='bold')]
    if is_random(record):
        parts.append(Styled(f'*** {RANDOM_WEIGHTS} ***', style='bold red', justify='center'))
    if not record.chunks or record.status is None:
        return Group(*parts, progress(record, show))
    columns = Table.grid(expand=True)
    columns.add_column(ratio=2)
    columns.add_column(ratio=3)
    speed = f'time {show.speed:.2f}× as quick as real'
    left: list[RenderableType] = [Panel(figures(record, show), title='engine', subtitle=speed)]
    if picture is not None:
        left.insert(0, blocks(picture, COLUMNS))
    lines = [event_line(event) for event in _shown(ledger.events[-LOOKED_AT:])[-SHOWN_EVENTS:]]
    columns.add_row(Group(*left), Panel(Group(*lines), title='told, said, remembered'))
    return Group(*parts, columns, Panel(inputs(record), title='inputs, and what is not well'))


def _shown(events: Sequence[Event]) -> list[Event]:
    """Return events without spoken lines that only say the same again."""
    result, line = [], ''
    for event in events:
        if event.kind is Kind.SAID:
            if event.text == line:
                continue
            line = event.text
        result.append(event)
    return result


def event_line(event: Event) -> Styled:
    """Return an event as a line, with the mark of its verdict."""
    line = Styled(f'{event.kind.value:{LABEL}}', style='dim')
    line.append(' '.join(event.text.split()), style=VERDICT_STYLES[event.verdict])
    if event.verdict.mark:
        line.append(f' {event.verdict.mark}', style=VERDICT_STYLES[event.verdict])
    if event.detail:
        line.append(f' ({event.detail})', style='dim')
    return line


def blocks(picture: np.ndarray, columns: int) -> Styled:
    """Return a picture as half blocks, two pixels above each other in a character."""
    height, width = picture.shape[:2]
    rows = 2 * round(columns * height / width / 2)
    small = cv2.resize(picture, (columns, rows), interpolation=cv2.INTER_AREA)
    text = Styled(no_wrap=True)
    for upper, lower in zip(small[::2], small[1::2]):
        for above, below in zip(upper, lower):
            text.append('▀', Style(color=Color.from_rgb(*map(int, above)), bgcolor=Color.from_rgb(*map(int, below))))
        text.append('\n')
    text.rstrip()
    return text
