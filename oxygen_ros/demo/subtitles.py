"""Subtitles: what was told, asked, said and remembered, as a picture to put below those of the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from oxygen_ros.demo.events import Event, Kind, Verdict

HEIGHT = 160  # pixels of the part below the pictures
ROW, MARGIN, LABEL = 24, 10, 74  # pixels
SIZE = 15
BACKGROUND, DIM, PLAIN = (18, 20, 26), (135, 142, 155), (238, 240, 244)
MARKS = {Verdict.TRUE: (90, 205, 120), Verdict.FALSE: (240, 95, 85), Verdict.OPEN: PLAIN}
ALARM = (240, 95, 85)
LABELS = {'head': (646, 2), 'left wrist': (646, 242), 'right wrist': (766, 242)}
CLOCK = (650, 372)  # where time and setting stand
RECALLED_SECONDS = 6.0  # so long a note from memory is shown in place of the newest note
NANOSECONDS = 1_000_000_000


class Subtitles:
    """
    Draws them.

    :param title: what runs, in a few short lines. :param warning: shown in red; empty for none.
    :param start_ns: time from which seconds are counted.
    """

    def __init__(self, title: Sequence[str], warning: str = '', start_ns: int = 0) -> None:
        self._title, self._warning, self._start_ns = tuple(title), warning, start_ns
        font = _font_file()
        self._font, self._small = ImageFont.truetype(font, SIZE), ImageFont.truetype(font, SIZE - 4)
        self._drawn: tuple[list[tuple[str, Event | None]], np.ndarray] | None = None

    def below(self, picture: np.ndarray, time_ns: int, events: Sequence[Event]) -> np.ndarray:
        """
        Return a picture with what holds at a moment below it.

        :param picture: uint8 [height, width, 3] RGB.
        :param events: of the whole run, in order.
        """
        rows = rows_at(time_ns, events)
        if self._drawn is None or self._drawn[0] != rows:
            self._drawn = rows, self._draw(rows, picture.shape[1])
        image = Image.fromarray(picture)
        draw = ImageDraw.Draw(image)
        for name, place in LABELS.items():
            draw.text(place, name, font=self._small, fill=PLAIN, stroke_width=1, stroke_fill=BACKGROUND)
        seconds = (time_ns - self._start_ns) / NANOSECONDS
        lines = f'{seconds:.1f} s', *self._title
        draw.multiline_text(CLOCK, '\n'.join(lines), font=self._small, fill=DIM, spacing=5)
        return np.vstack([np.asarray(image), self._drawn[1]])

    def _draw(self, rows: list[tuple[str, Event | None]], width: int) -> np.ndarray:
        image = Image.new('RGB', (width, HEIGHT), BACKGROUND)
        draw = ImageDraw.Draw(image)
        y = MARGIN
        for label, event in rows:
            draw.text((MARGIN, y), label, font=self._font, fill=DIM)
            if event is not None:
                words = ' '.join(filter(None, (event.verdict.mark, event.text, event.detail and f'({event.detail})')))
                draw.text((MARGIN + LABEL, y), self._fit(words, width - LABEL - 2 * MARGIN), font=self._font,
                          fill=MARKS[event.verdict])
            y += ROW
        if self._warning:
            draw.text((width - MARGIN, HEIGHT - MARGIN), self._warning, font=self._font, fill=ALARM, anchor='rb')
        return np.asarray(image)

    def _fit(self, words: str, width: int) -> str:
        """Cut a line to so many pixels."""
        words = ' '.join(words.split())
        if self._font.getlength(words) <= width:
            return words
        while words and self._font.getlength(f'{words}…') > width:
            words = words[:-1]
        return f'{words}…'


def _font_file() -> str:
    """Return the file of a font that has the marks: Matplotlib brings it along, or knows where the system has it."""
    path = Path(matplotlib.get_data_path()) / 'fonts' / 'ttf' / 'DejaVuSans.ttf'
    if path.exists():
        return str(path)
    from matplotlib import font_manager  # looks through all fonts, which takes its time
    return font_manager.findfont('DejaVu Sans')


def rows_at(time_ns: int, events: Sequence[Event]) -> list[tuple[str, Event | None]]:
    """Return what is shown at a moment: label and event, the newest of each kind. An answer follows its question."""
    newest: dict[Kind, Event] = {}
    for event in events:
        if event.time_ns > time_ns:
            break
        newest[event.kind] = event
        if event.kind is Kind.TOLD:
            newest.pop(Kind.DID, None)
        if event.kind is Kind.ASKED:
            newest.pop(Kind.ANSWERED, None)
    asked, answer = newest.get(Kind.ASKED), newest.get(Kind.ANSWERED)
    if asked is not None and answer is not None and answer.number != asked.number:
        answer = None
    recalled = newest.get(Kind.RECALLED)
    if recalled is not None and time_ns - recalled.time_ns < RECALLED_SECONDS * NANOSECONDS:
        memory = Kind.RECALLED.value, recalled
    else:
        memory = Kind.NOTED.value, newest.get(Kind.NOTED)
    return [(Kind.TOLD.value, newest.get(Kind.TOLD)), ('', newest.get(Kind.DID)),
            (Kind.SAID.value, newest.get(Kind.SAID)), (Kind.ASKED.value, asked), ('', answer), memory]
