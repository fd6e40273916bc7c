"""The text part of π0.5's prefix: instruction and state, as openpi and LeRobot write them."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence

import numpy as np

from oxygen_ros.errors import ConfigError
from oxygen_ros.models.interface import TextTokenizer

logger = logging.getLogger(__name__)

STATE_BINS = 256
LONGEST_TOKEN = 32  # characters per token that are looked at
_FIELD = re.compile(r'\{(?:text|command|state)\}')
_EDGES = np.linspace(-1, 1, STATE_BINS + 1)[:-1]


def state_bins(state: np.ndarray) -> np.ndarray:
    """Return the bin of each number of a normalised state: 0..255, -1 below the range, as openpi counts them."""
    return np.digitize(state, _EDGES) - 1


def clean(text: str) -> str:
    """Return an instruction as the models saw it in training: one line, no underscores, case kept."""
    return text.strip().replace('_', ' ').replace('\n', ' ')


class PromptEncoder:
    r"""
    Writes prompts in the form that a model was trained on.

    :param template: with `{text}` for the instruction, or `{command}` for its lower-cased form without the final mark,
        and `{state}` for the bins of the state. π0.5: `Task: {text}, State: {state};\nAction: `. Without the state
        (as in LIBERO): `{text}\n`.
    :param limit: most tokens. :param bos: tokens in front.
    """

    def __init__(self, tokenizer: TextTokenizer, template: str, limit: int, bos: Sequence[int] = ()) -> None:
        self._tokenizer, self._template, self._limit, self._bos = tokenizer, template, limit, list(bos)
        self._cut = ''  # the last instruction that was too long

    @property
    def has_state(self) -> bool:
        """Whether the prompt tells the state."""
        return '{state}' in self._template

    def encode(self, instruction: str, state: np.ndarray) -> list[int]:
        """
        Return the tokens of a prompt.

        If it is too long the instruction is cut at its end, so that the state stays. (openpi cuts the state.)

        :param state: normalised, without padding.
        :raises ConfigError: even without an instruction it is too long.
        """
        text = clean(instruction[:LONGEST_TOKEN * self._limit])
        bins = ' '.join(map(str, state_bins(state)))
        tokens = self._tokens(text, bins)
        if len(tokens) <= self._limit:
            return tokens
        low, high = 0, len(text)  # so many characters fit, so many do not
        if len(self._tokens('', bins)) > self._limit:
            raise ConfigError(f'a state of {len(state)} numbers leaves no room for the instruction in {self._limit} '
                              'prompt tokens: raise prompt_tokens in the model file')
        while high - low > 1:
            middle = (low + high) // 2
            fits = len(self._tokens(text[:middle], bins)) <= self._limit
            low, high = (middle, high) if fits else (low, middle)
        if self._cut != instruction:
            self._cut = instruction
            logger.warning('the instruction of %d characters is cut to %d to fit into prompt_tokens %d',
                           len(instruction), low, self._limit)
        return self._tokens(text[:low], bins)

    def _tokens(self, text: str, bins: str) -> list[int]:
        words = {'{text}': text, '{command}': text.lower().rstrip('.!?'), '{state}': bins}
        prompt = _FIELD.sub(lambda match: words[match[0]], self._template)
        return [*self._bos, *self._tokenizer.encode(prompt)]
