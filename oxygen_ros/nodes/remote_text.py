"""Text that came from others, as it may stand in a log or in diagnostics."""

from __future__ import annotations

MOST = 200  # characters


def shown(text: str, most: int = MOST) -> str:
    """
    Return a text without what could pass for another line of the log, or change what a terminal shows.

    What cannot be printed (line ends, escape sequences, marks that turn the direction of writing) becomes its escape.

    :param most: characters of the text that are kept; how many there were is said.
    """
    kept = ''.join(letter if letter.isprintable() else letter.encode('unicode_escape').decode()
                   for letter in text[:most])
    return kept if len(text) <= most else f'{kept}... ({len(text)} characters)'
