"""Turns tokens into text piece by piece without ever cutting a character."""

from __future__ import annotations

import codecs

from oxygen_ros.models.interface import TextTokenizer


class IncrementalDetokenizer:
    """
    Collects the bytes of tokens and gives out whole characters only.

    Bytes that can never become a character are replaced by U+FFFD at once; bytes that may still become one wait for
    the next token, or for `flush`. The blank that tokenizers put before the first word is dropped.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._decoder = codecs.getincrementaldecoder('utf-8')(errors='replace')
        self._begun = False

    def push(self, token: int) -> str:
        """Return the text that this token completes, possibly empty."""
        return self._strip(self._decoder.decode(self._tokenizer.token_bytes(token)))

    def flush(self) -> str:
        """Return what is left at the end: U+FFFD for a character that was never completed."""
        return self._strip(self._decoder.decode(b'', final=True))

    def _strip(self, text: str) -> str:
        if text and not self._begun:
            self._begun = True
            return text.removeprefix(' ')
        return text
