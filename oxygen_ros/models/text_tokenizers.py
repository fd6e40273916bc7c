"""Tokenizers of checkpoints, from files beside the weights: sentencepiece models and Hugging Face's tokenizer.json."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path

import sentencepiece
import tokenizers

from oxygen_ros.errors import ConfigError

FILES = ('paligemma_tokenizer.model', 'tokenizer.model', 'tokenizer.json')
BLANK = '▁'  # stands for a blank in the pieces of sentencepiece
_BYTE = re.compile(r'<0x([0-9A-F]{2})>')
_MARKUP = re.compile(r'<[^\s<>]+>')


class PieceTokenizer:
    """
    A vocabulary of sentencepiece form, whichever library reads it; implements `TextTokenizer`.

    :param encode: plain text -> ids, without control tokens in front or behind.
    :param pieces: piece of every id. :param controls: ids that are no text.
    """

    def __init__(self, encode: Callable[[str], list[int]], pieces: Iterable[str], controls: Iterable[int]) -> None:
        self._encode = encode
        controls = frozenset(controls)
        pieces = list(pieces)
        self._bytes = [b'' if i in controls else _piece_bytes(piece) for i, piece in enumerate(pieces)]
        words = sorted({pieces[i] for i in controls if _MARKUP.fullmatch(pieces[i])}, key=len, reverse=True)
        # Where the name of a control token stands in a text, it is cut behind its first character.
        self._cut = re.compile('|'.join(f'(?<=<){re.escape(word[1:])}' for word in words)) if words else None

    @property
    def size(self) -> int:
        """Number of ids."""
        return len(self._bytes)

    def encode(self, text: str) -> list[int]:
        """Return the ids of plain text, never control tokens; half surrogate pairs become '?'."""
        text = text.encode('utf-8', 'replace').decode()
        if self._cut is None:
            return self._encode(text)
        cuts = [0, *(match.start() for match in self._cut.finditer(text)), len(text)]
        return [token for start, end in zip(cuts, cuts[1:]) for token in self._encode(text[start:end])]

    def token_bytes(self, token: int) -> bytes:
        """Return the UTF-8 bytes of an id; empty for control tokens and ids out of range."""
        return self._bytes[token] if 0 <= token < len(self._bytes) else b''


def load_tokenizer(path: Path) -> PieceTokenizer:
    """
    Load a tokenizer from a file, or from a directory that holds one of `FILES`.

    :raises ConfigError: there is none, or it cannot be read.
    """
    file = path
    if path.is_dir():
        file = next((path / name for name in FILES if (path / name).is_file()), None)
    if file is None or not file.is_file():
        raise ConfigError(f'there is no tokenizer at {str(path)!r}: copy one of {", ".join(FILES)} to the checkpoint, '
                          'or give its path as `tokenizer` in the model file')
    try:
        return _from_json(file) if file.suffix == '.json' else _from_sentencepiece(file)
    except Exception as error:  # noqa: B902 - the libraries raise bare Exceptions
        raise ConfigError(f'tokenizer {str(file)!r} cannot be read: {error}') from error


def _from_sentencepiece(file: Path) -> PieceTokenizer:
    model = sentencepiece.SentencePieceProcessor(model_file=str(file))
    pieces = [model.id_to_piece(i) for i in range(model.vocab_size())]
    # PaliGemma's tokens for places and masks are ordinary entries of its vocabulary, yet no text.
    controls = [i for i, piece in enumerate(pieces)
                if model.is_control(i) or model.is_unknown(i) or _is_markup(piece) and not model.is_byte(i)]
    return PieceTokenizer(model.encode, pieces, controls)


def _from_json(file: Path) -> PieceTokenizer:
    model = tokenizers.Tokenizer.from_file(str(file))
    added = model.get_added_tokens_decoder()
    pieces = [model.id_to_token(i) or '' for i in range(model.get_vocab_size())]
    controls = [i for i, token in added.items() if token.special or _is_markup(token.content)]
    return PieceTokenizer(lambda text: model.encode(text, add_special_tokens=False).ids, pieces, controls)


def _is_markup(piece: str) -> bool:
    return _MARKUP.fullmatch(piece) is not None and _BYTE.fullmatch(piece) is None


def _piece_bytes(piece: str) -> bytes:
    byte = _BYTE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace(BLANK, ' ').encode('utf-8', 'replace')
