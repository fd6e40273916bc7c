"""
The small built-in policy: the π0.5 family at a few million parameters, with its own tokenizer.

Without trained weights it is initialised at random from a seed. It then does all the work of a real model, but its
actions and texts mean nothing; `ModelSpec.random_weights` says so and every node repeats it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.errors import ConfigError
from oxygen_ros.models.checkpoint_statistics import read_json, read_statistics
from oxygen_ros.models.checkpoints import load_strict
from oxygen_ros.models.gemma import GemmaConfig
from oxygen_ros.models.initialise import initialise
from oxygen_ros.models.interface import ModelSpec, PolicyInput
from oxygen_ros.models.pi0_adapter import Pi0Adapter
from oxygen_ros.models.pi0_network import Pi0Config, Pi0Network
from oxygen_ros.models.prompt_context import NO_CONTEXT, PromptContext, context_kinds
from oxygen_ros.models.registry import LoadOptions
from oxygen_ros.models.siglip import VisionConfig
from oxygen_ros.models.tokenizer import WordTokenizer
from oxygen_ros.perception.resize import resize_with_pad

logger = logging.getLogger(__name__)

TOKENIZER = 'tokenizer.json'  # words of a checkpoint's tokenizer
PREFIX_MASKS = ('bidirectional', 'causal_language')
CONTROLS = ('bos', 'eos', 'state', 'speech', 'answer', 'memory', 'reply')
STATE_BINS = 256
LONGEST_TOKEN = 32  # characters per token that are looked at
BRANCH_POSITIONS = 4096  # longest branch that positions are prepared for


class TinyModel(Pi0Adapter):
    """
    Adapter of the tiny family; implements `VLAModel`.

    Prefix: image tokens of the cameras present, then bos, instruction, the state token and one token per state value.
    All tokens see each other (`prefix_mask: bidirectional`), or images see images only and text what is before it
    (`causal_language`). Branches (causal): speech = `<speech>`; answer = `<answer> question <reply>`;
    memory = `<memory>`.

    A checkpoint may bring along the words of its tokenizer and statistics of states and actions; they win.

    :param config: parsed model file, such as `config/models/tiny.yaml`.
    """

    longest_trained_delay = 0  # it was not trained for real-time chunking

    def __init__(self, config: Mapping, options: LoadOptions | None = None) -> None:
        options = options or LoadOptions()
        # State values are control tokens: their bins are no text.
        controls = [*CONTROLS, *(f'state{i}' for i in range(-1, STATE_BINS))]
        self.tokenizer = WordTokenizer(_words(config, options.checkpoint), controls)
        self._prompt_tokens = int(config['prompt_tokens'])
        mask = config.get('prefix_mask', PREFIX_MASKS[0])
        if mask not in PREFIX_MASKS:
            raise ValueError(f'prefix_mask {mask!r} must be one of {list(PREFIX_MASKS)}')
        self._causal_text = mask == 'causal_language'
        self._instruction: tuple[str, list[int]] = '', []  # the last one, encoded
        vision = VisionConfig(**config['vision'])
        prefix_tokens = len(config['cameras']) * vision.tokens + self._prompt_tokens
        network = Pi0Config(vision, GemmaConfig(**config['decoder']), GemmaConfig(**config['expert']),
                            self.tokenizer.size, int(config['horizon']), int(config['action_dim']),
                            prefix_tokens + BRANCH_POSITIONS)
        self.network = Pi0Network(network)
        random = options.checkpoint is None
        if random:
            initialise(self.network, options.seed)
        else:
            load_strict(self.network, options.checkpoint)
        dtype, device = options.dtype, options.device
        self.network.to(device=device, dtype=dtype).eval()
        control_ids = range(self.tokenizer.control(CONTROLS[0]), self.tokenizer.size)
        eos = self.tokenizer.control('eos')
        self.spec = ModelSpec(
            name='tiny', weights=f'random, seed {options.seed}' if random else str(options.checkpoint),
            random_weights=random, layers=network.decoder.depth,
            kv_heads=network.decoder.kv_heads, head_dim=network.decoder.head_dim, vocabulary=network.vocabulary,
            prefix_tokens=prefix_tokens, branch_tokens=BRANCH_POSITIONS, horizon=network.horizon,
            action_dim=network.action_dim, action_period=float(config['action_period']),
            cameras=tuple(config['cameras']), denoise_steps=int(config['denoise_steps']), stop_tokens=frozenset({eos}),
            # Random weights would spell bytes at random; words at least can be read.
            suppressed_tokens=(*(range(256) if random else ()), *(i for i in control_ids if i != eos)),
            first_action_offset=1, context=context_kinds(config), dtype=dtype, device=device,
            frame_extras=network.frame_extras(dtype),
            statistics=None if random else read_statistics(options.checkpoint))

    def prefix_tokens(self, instruction: str, state: np.ndarray) -> list[int]:
        """
        Return the text part of the prefix.

        State bins as in π0.5: `digitize(x, linspace(-1, 1, 257)[:-1]) - 1`, 0..255, -1 below the range.

        :raises ConfigError: when the state alone does not fit.
        """
        control = self.tokenizer.control
        bins = np.digitize(state, np.linspace(-1, 1, STATE_BINS + 1)[:-1]) - 1
        tail = [control('state'), *(control(f'state{b}') for b in bins)]
        room = self._prompt_tokens - 1 - len(tail)
        if room < 1:
            raise ConfigError(f'model tiny: a state of {len(state)} numbers leaves no room for the instruction in '
                              f'{self._prompt_tokens} prompt tokens: raise prompt_tokens in the model file')
        return [control('bos'), *self._encode_instruction(instruction)[:room], *tail]

    def _encode_instruction(self, instruction: str) -> list[int]:
        """Encode once what every prefill needs; what is beyond all room is not even looked at."""
        if self._instruction[0] != instruction:
            tokens = self.tokenizer.encode(instruction[:LONGEST_TOKEN * self._prompt_tokens])
            self._instruction = instruction, tokens
            if len(instruction) > LONGEST_TOKEN * self._prompt_tokens or len(tokens) > self._prompt_tokens:
                logger.warning('the instruction of %d characters is cut to fit into prompt_tokens %d', len(instruction),
                               self._prompt_tokens)
        return self._instruction[1]

    def prefill(self, inputs: PolicyInput, instruction: str, cache: UnifiedKVCache, frame: int) -> None:
        """Write the prefix of an observation into a frame slot; see `VLAModel.prefill`."""
        side = self.network.config.vision.image
        given = inputs.observation.images
        images = [resize_with_pad(given[name], side, side) for name in self.spec.cameras if name in given]
        pixels = torch.from_numpy(np.stack(images)) if images else torch.zeros((0, side, side, 3), dtype=torch.uint8)
        pixels = pixels.to(self.spec.device).permute(0, 3, 1, 2).to(self.spec.dtype) / 127.5 - 1
        tokens = torch.tensor(self.prefix_tokens(instruction, inputs.state), device=self.spec.device)
        self.network.prefill(pixels, tokens, cache, frame, self._causal_text)

    def branch_prompt(self, task: str, text: str, context: PromptContext = NO_CONTEXT) -> list[int]:
        """Return the prompt of a text task; see `VLAModel.branch_prompt`."""
        control = self.tokenizer.control
        if task != 'answer':
            return [control(task)]
        encode = self.tokenizer.encode
        notes = [token for note in context.notes for token in (control('memory'), *encode(note))]
        before = [token for exchange in context.exchanges for token in (
            control('answer'), *encode(exchange.question), control('reply'), *encode(exchange.answer))]
        return [*notes, *before, control('answer'), *encode(text), control('reply')]


def _words(config: Mapping, checkpoint: Path | None) -> list[str]:
    """Return the words of the tokenizer: those that the weights were trained with, else those of the model file."""
    if checkpoint is None or not (checkpoint / TOKENIZER).is_file():
        return config['words'].split()
    path = checkpoint / TOKENIZER
    words = read_json(path, f'tokenizer {path}').get('words')
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ConfigError(f'tokenizer {path}: holds no list `words`: copy it again from the checkpoint')
    return words


def load(config: Mapping, options: LoadOptions) -> TinyModel:
    """Return the model of a parsed model file; see `registry.load_model`."""
    return TinyModel(config, options)
