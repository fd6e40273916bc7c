"""
QwenFAST: actions are tokens of the language model, decoded greedily on a branch behind the frame.

The tokens are numbers of a second tokenizer (FAST): byte-pair pieces of a text whose characters are the rounded
coefficients of a discrete cosine transform of the chunk, action by action, time by time.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import tokenizers
import torch

from oxygen_ros.engine.kv_cache import ExtraSpec, UnifiedKVCache
from oxygen_ros.errors import ConfigError
from oxygen_ros.models.checkpoint_statistics import read_json
from oxygen_ros.models.qwen3_vl import QwenDecoder
from oxygen_ros.models.qwen3_vl_prefix import LAST_HIDDEN

logger = logging.getLogger(__name__)

SETTINGS, VOCABULARY = 'processor_config.json', 'tokenizer.json'


class ActionTokenizer(Protocol):
    """Turns action tokens into actions."""

    size: int  # number of tokens

    def decode(self, tokens: Sequence[int], horizon: int, action_dim: int) -> np.ndarray:
        """Return a chunk, float64 [horizon, action_dim]; raises ValueError if the tokens are none."""
        ...


class FastTokenizer:
    """
    FAST, from a directory with its tokenizer.json and processor_config.json (scale, min_token).

    :raises ConfigError: a file is missing or cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        where = f'FAST tokenizer {str(folder)!r}'
        settings = read_json(folder / SETTINGS, f'{where}: {SETTINGS}')
        try:
            self._pieces = tokenizers.Tokenizer.from_file(str(folder / VOCABULARY))
            self._scale, self._least = float(settings['scale']), int(settings['min_token'])
        except Exception as error:  # noqa: B902 - the library raises bare Exceptions
            raise ConfigError(f'{where} cannot be read ({error!r}): copy {VOCABULARY} and {SETTINGS} there') from error
        self.size = self._pieces.get_vocab_size()

    def decode(self, tokens: Sequence[int], horizon: int, action_dim: int) -> np.ndarray:
        """Return a chunk; see `ActionTokenizer`."""
        if not all(0 <= token < self.size for token in tokens):
            raise ValueError(f'tokens beyond the {self.size} of the FAST tokenizer')
        text = self._pieces.decode(list(tokens), skip_special_tokens=False)
        if len(text) != horizon * action_dim:
            raise ValueError(f'{len(text)} coefficients for {horizon} actions of {action_dim} numbers')
        coefficients = np.array([ord(letter) + self._least for letter in text], dtype=np.float64)
        return cosines(horizon).T @ (coefficients.reshape(horizon, action_dim) / self._scale)


def cosines(size: int) -> np.ndarray:
    """Return the orthonormal matrix of the discrete cosine transform (of type II), float64 [frequencies, times]."""
    frequencies, times = np.arange(size)[:, None], np.arange(size)[None, :]
    matrix = np.cos(np.pi / size * (times + 0.5) * frequencies) * math.sqrt(2 / size)
    matrix[0] /= math.sqrt(2)
    return matrix


class FastHead:
    """
    Decodes the tokens of a chunk on the branch that the cache has for it.

    :param first: id of the language model that stands for action token 0. :param longest: most tokens of a chunk.
    :param stop: ids that end a chunk.
    """

    denoise_steps = 1  # there is no flow

    def __init__(self, decoder: QwenDecoder, tokenizer: ActionTokenizer, first: int, longest: int,
                 stop: frozenset[int], horizon: int, action_dim: int) -> None:
        self.decoder, self.tokenizer, self.longest = decoder, tokenizer, longest
        self._first, self._stop, self._shape = first, stop, (horizon, action_dim)

    def extras(self, prefix_tokens: int, dtype: torch.dtype) -> dict[str, ExtraSpec]:
        """Return what is kept with a frame: nothing."""
        return {}

    def denoise(self, cache: UnifiedKVCache, frame: int, noise: torch.Tensor, steps: int) -> torch.Tensor:
        """
        Return the actions float32 [horizon, action_dim]; noise and steps mean nothing here.

        What is no chunk gives NaN, so that it is dropped as a whole.
        """
        tokens = [token - self._first for token in self.tokens(cache, frame)]
        try:
            actions = self.tokenizer.decode([token for token in tokens if 0 <= token < self.tokenizer.size],
                                            *self._shape)
        except ValueError as error:
            logger.warning('the model gave no actions: %s', error)
            return torch.full(self._shape, math.nan)
        return torch.from_numpy(actions).float()

    def tokens(self, cache: UnifiedKVCache, frame: int) -> list[int]:
        """Return what the language model says behind the prefix, the most likely token each time."""
        branch, result, best = cache.open_branch(frame), [], torch.zeros(())
        logits = self.decoder.logits(cache.extras[LAST_HIDDEN][frame])
        try:
            while True:
                best, token = logits.max(dim=0)
                if int(token) in self._stop or len(result) == self.longest or not best.isfinite():
                    return result
                result.append(int(token))
                logits = self.decoder.extend(cache, [branch], [result[-1:]])[0]
        finally:
            cache.close_branch(branch, wipe=not bool(best.isfinite()))
