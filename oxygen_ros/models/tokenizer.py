"""A small word tokenizer: whole words where it knows them, UTF-8 bytes elsewhere. Loses nothing but lone surrogates."""

from __future__ import annotations

import re
from collections.abc import Sequence

# A word or a punctuation mark with the blank in front of it, or other white space.
_PIECE = re.compile(r' ?\w+| ?[^\w\s]|\s')


class WordTokenizer:
    """
    Words, bytes and control tokens.

    Ids: 0..255 are the bytes, then one id per word, then one per control token. Control tokens are not known to the
    text side at all, so that no text can ever be read as one.

    :param words: distinct words or punctuation marks; each stands for itself with a blank in front.
    :param controls: names of the control tokens, see `control`.
    """

    def __init__(self, words: Sequence[str], controls: Sequence[str]) -> None:
        if len(set(words)) != len(words):
            raise ValueError(f'words repeat: {sorted({w for w in words if words.count(w) > 1})}')
        self._bytes = [bytes([b]) for b in range(256)] + [f' {word}'.encode() for word in words]
        self._words = {f' {word}': 256 + i for i, word in enumerate(words)}
        self._controls = {name: len(self._bytes) + i for i, name in enumerate(controls)}

    @property
    def size(self) -> int:
        """Number of ids."""
        return len(self._bytes) + len(self._controls)

    def control(self, name: str) -> int:
        """Return the id of a control token."""
        return self._controls[name]

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text, read as if a blank stood in front of it; half surrogate pairs become '?'."""
        ids: list[int] = []
        for piece in _PIECE.findall(f' {text}'):
            word = self._words.get(piece)
            ids.extend([word] if word is not None else piece.encode('utf-8', 'replace'))
        return ids

    def token_bytes(self, token: int) -> bytes:
        """Return the UTF-8 bytes of an id; empty for control tokens and ids out of range."""
        return self._bytes[token] if 0 <= token < len(self._bytes) else b''


def numbered_tokenizer(vocabulary: int) -> WordTokenizer:
    """Return a tokenizer with a made-up word for every id beyond the bytes: for models whose text means nothing."""
    return WordTokenizer([f'w{token}' for token in range(256, vocabulary)], [])
