"""Byte-level BPE tokenizers, as Qwen's, from a checkpoint's tokenizer.json."""

from __future__ import annotations

import re
from pathlib import Path

import tokenizers

from oxygen_ros.errors import ConfigError

FILE = 'tokenizer.json'


class ByteTokenizer:
    """
    A vocabulary whose pieces are bytes, written with one letter each; implements `TextTokenizer`.

    :raises ConfigError: the directory has no tokenizer.json, or it cannot be read.
    """

    def __init__(self, checkpoint: Path) -> None:
        file = checkpoint / FILE
        if not file.is_file():
            raise ConfigError(f'checkpoint {str(checkpoint)!r} has no {FILE}: copy it there')
        try:
            self._model = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # noqa: B902 - the library raises bare Exceptions
            raise ConfigError(f'tokenizer {str(file)!r} cannot be read: {error}') from error
        added = {token.content: number for number, token in self._model.get_added_tokens_decoder().items()}
        bytes_of = {letter: byte for byte, letter in enumerate(_letters())}
        self._bytes = {number: bytes(bytes_of[letter] for letter in piece)
                       for piece, number in self._model.get_vocab(with_added_tokens=False).items()
                       if piece not in added}
        words = sorted((word for word in added if len(word) > 1), key=len, reverse=True)
        # Where the name of an added token stands in a text, it is cut behind its first character.
        self._cut = re.compile('|'.join(f'(?<={re.escape(word[0])}){re.escape(word[1:])}' for word in words)
                               ) if words else None

    def encode(self, text: str) -> list[int]:
        """Return the ids of plain text, never added tokens; half surrogate pairs become '?'."""
        text = text.encode('utf-8', 'replace').decode()
        starts = [match.start() for match in self._cut.finditer(text)] if self._cut else []
        cuts = [0, *starts, len(text)]
        return [token for start, end in zip(cuts, cuts[1:]) for token in self.encode_markup(text[start:end])]

    def encode_markup(self, text: str) -> list[int]:
        """Return the ids of a template, in which names of added tokens stand for these."""
        return self._model.encode(text, add_special_tokens=False).ids

    def control(self, name: str) -> int:
        """Return the id of an added token such as '<|im_end|>'; raises ConfigError if there is none."""
        token = self._model.token_to_id(name)
        if token is None:
            raise ConfigError(f'the tokenizer of the checkpoint has no token {name}: it is of another model')
        return token

    def token_bytes(self, token: int) -> bytes:
        """Return the bytes of an id; empty for added tokens and ids out of range."""
        return self._bytes.get(token, b'')


def _letters() -> list[str]:
    """Return the letter that stands for each byte: printable Latin-1 for itself, the others from U+0100 on."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(others)) for byte in range(256)]
