"""
StarVLA: Qwen3-VL with one of the action heads PI, PI_v3, GR00T, OFT, or with actions as tokens (FAST).

Prefix (causal): pictures and instruction in one turn of the user. Texts decode behind it, each in a turn of its own; a
text without a prompt goes on from the last token of the prefix. No head reads keys and values of the prefix: they read
hidden states, and what they make of these is kept with the frame. Framework, sizes and prompt come from the checkpoint;
cameras, units and words are data, in config/models/starvla_*.yaml.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path

import numpy as np
import torch

from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.errors import ConfigError
from oxygen_ros.models.byte_tokenizer import ByteTokenizer
from oxygen_ros.models.chat_prompt import END, chat_prompt
from oxygen_ros.models.checkpoint_statistics import read_json
from oxygen_ros.models.interface import ExtraSpec, ModelSpec, PolicyInput
from oxygen_ros.models.prompt_context import NO_CONTEXT, ContextKind, PromptContext, context_kinds
from oxygen_ros.models.qwen3_vl_checkpoint import fill_network, parse_decoder
from oxygen_ros.models.qwen3_vl_prefix import LAST_HIDDEN, Prefix, write_prefix
from oxygen_ros.models.registry import DTYPES, LoadOptions
from oxygen_ros.models.starvla_config import Blocks, Framework, flow_config, read_config
from oxygen_ros.models.starvla_fast import FastHead, FastTokenizer
from oxygen_ros.models.starvla_files import base_folder, read_units, weights_path
from oxygen_ros.models.starvla_flow import FlowHead
from oxygen_ros.models.starvla_network import HEAD, StarVlaNetwork, sources, unused
from oxygen_ros.models.starvla_oft import OftHead
from oxygen_ros.models.starvla_prompt import QUERY, Prompt, PromptSettings
from oxygen_ros.robot.normalization import StatisticsMode

TASKS = ('speech', 'answer', 'memory')
BRANCH_POSITIONS = 4096  # longest branch that positions are prepared for


class StateForm(str, Enum):
    """In which form the model was given states in training."""

    NONE = 'none'
    RAW = 'raw'                # in their units
    NORMALISED = 'normalised'  # as actions are


class StarVlaModel:
    """
    Adapter of the starvla family; implements `VLAModel`.

    :param config: parsed `config/models/starvla_*.yaml`.
    """

    def __init__(self, config: Mapping, options: LoadOptions) -> None:
        checkpoint, name = options.checkpoint, config.get('name', 'starvla')
        if checkpoint is None:
            raise ConfigError(f'model {name} has no sizes of its own: give a checkpoint')
        self.config = read_config(checkpoint)
        self._state = StateForm(config['state'])
        statistics = read_units(checkpoint, config.get('robot_type'), StatisticsMode(config['normalisation']),
                                self.config.action_dim, self._state is StateForm.NORMALISED)
        base = base_folder(checkpoint, self.config.base, config.get('base_vlm'))
        vlm = read_json(base / 'config.json', 'config.json of the base model')
        if vlm.get('model_type') != 'qwen3_vl' or not vlm.get('tie_word_embeddings', True):
            raise ConfigError(f'the base model in {str(base)!r} is of type {vlm.get("model_type")!r}, output head '
                              f'tied: {vlm.get("tie_word_embeddings")}: this version runs qwen3_vl with a tied one')
        decoder = parse_decoder(vlm['text_config'], 'config.json of the base model')
        self.image_token: int = vlm['image_token_id']
        self.tokenizer = ByteTokenizer(base)
        size = config.get('client_image_size')
        settings = PromptSettings(tuple(config['cameras']), config['image_tokens'], config['prompt_tokens'],
                                  tuple(size) if size else None, self._state is not StateForm.NONE)
        self.prompt = Prompt(self.config, settings, base, self.tokenizer, self.image_token)
        self._tasks = {task: config['tasks'][task] for task in TASKS}
        self._binary = _indices(config.get('binary') or (), self.config.action_dim)
        prefix_tokens, head_dtype = settings.prefix_tokens, _dtype(config.get('head_dtype', 'float32'))
        with torch.device('meta'):
            self.network = StarVlaNetwork(vlm['vision_config'], decoder, vlm['text_config']['vocab_size'],
                                          prefix_tokens + BRANCH_POSITIONS,
                                          self._head(config, decoder.width, decoder.depth))
        rules = {choice: lambda key, dtype=dtype: head_dtype if key.startswith(HEAD) else dtype
                 for choice, dtype in DTYPES.items()}
        path = weights_path(checkpoint, config.get('weights'))
        stop = frozenset({self.tokenizer.control('<|im_end|>')})
        self.head = self.network.head or self._fast_head(checkpoint, config, stop)
        extras = {LAST_HIDDEN: ExtraSpec((decoder.width,), options.dtype),
                  **self.head.extras(prefix_tokens, head_dtype)}
        vocabulary = self.network.decoder.embedding.num_embeddings
        self.spec = ModelSpec(
            name=name, weights=str(path), random_weights=False, layers=decoder.depth, kv_heads=decoder.kv_heads,
            head_dim=decoder.head_dim, vocabulary=vocabulary, prefix_tokens=prefix_tokens,
            branch_tokens=BRANCH_POSITIONS, horizon=self.config.horizon, action_dim=self.config.action_dim,
            action_period=config['action_period'], cameras=settings.cameras,
            denoise_steps=config.get('denoise_steps') or self.head.denoise_steps, stop_tokens=stop,
            suppressed_tokens=tuple(token for token in range(vocabulary)
                                    if token not in stop and not self.tokenizer.token_bytes(token)),
            first_action_offset=config.get('first_action_offset', 0), dtype=options.dtype, device=options.device,
            frame_extras=extras, text_head_trained=config['text_head_trained'], statistics=statistics, scratch_tokens=0,
            action_branch_tokens=self.head.longest if isinstance(self.head, FastHead) else 0,
            context=context_kinds(config, ContextKind))
        options.admit(self.spec)
        fill_network(name, self.network, path, sources(self.network), unused(self.network), rules, options)

    def prefix(self, inputs: PolicyInput, instruction: str) -> Prefix:
        """Return what the decoder reads; see `Prompt.prefix`."""
        return self.prompt.prefix(inputs, instruction)

    def prefill(self, inputs: PolicyInput, instruction: str, cache: UnifiedKVCache, frame: int,
                captured: list[torch.Tensor] | None = None) -> None:
        """Write the prefix of an observation into a frame slot; see `VLAModel.prefill` and `QwenDecoder.prefill`."""
        state, prefix = self._given(inputs.state), self.prefix(inputs, instruction)
        if self.network.head is not None and captured is None:
            captured = []
        write_prefix(self.network.vision, self.network.decoder, prefix, self.image_token, cache, frame, captured)
        if self.network.head is not None:
            self.network.head.keep(cache, frame, captured, prefix.tokens, state)

    def prefill_subtask(self, inputs: PolicyInput, task: str, cache: UnifiedKVCache, frame: int) -> None:
        """Never called: this family has no prompt for subtasks."""
        raise NotImplementedError(f'model {self.spec.name} knows no subtasks')

    def denoise(self, cache: UnifiedKVCache, frame: int, noise: torch.Tensor, steps: int) -> torch.Tensor:
        """Generate an action chunk, in which binary numbers are 0 or 1; see `VLAModel.denoise`."""
        actions = self.raw_actions(cache, frame, noise, steps)
        actions[:, self._binary] = (actions[:, self._binary] > 0.5).float() + 0 * actions[:, self._binary]  # keeps NaN
        return actions

    def raw_actions(self, cache: UnifiedKVCache, frame: int, noise: torch.Tensor, steps: int) -> torch.Tensor:
        """Return the actions as the head gives them, float32 [horizon, action_dim] on the CPU."""
        return self.head.denoise(cache, frame, noise.to(self.spec.device), steps).cpu()

    def prefix_logits(self, cache: UnifiedKVCache, frame: int) -> torch.Tensor:
        """Return the logits of the first token of a text without a prompt; see `VLAModel.prefix_logits`."""
        return self.network.decoder.logits(cache.extras[LAST_HIDDEN][frame])

    def extend(self, cache: UnifiedKVCache, slots: Sequence[int], tokens: Sequence[Sequence[int]]) -> torch.Tensor:
        """Add tokens to branches; see `VLAModel.extend`."""
        return self.network.decoder.extend(cache, slots, tokens)

    def branch_prompt(self, task: str, text: str, context: PromptContext = NO_CONTEXT) -> list[int]:
        """
        Return the end of the turn that the prefix has begun, and a turn of the user; see `VLAModel.branch_prompt`.

        Empty words: the text goes on from the prefix.
        """
        turns = chat_prompt(self.tokenizer, self._tasks[task].replace('{text}', text), context)
        return [*self.tokenizer.encode_markup(END), *turns] if turns else []

    # -- loading -----------------------------------------------------------------------------------------------------

    def _head(self, config: Mapping, hidden: int, layers: int) -> FlowHead | OftHead | None:
        c = self.config
        if c.framework is Framework.FAST:
            if self._state is not StateForm.NONE:
                raise ValueError('state must be none: QwenFAST takes no states')
            return None
        if c.framework is Framework.OFT:
            return OftHead(hidden, c.action_dim, c.horizon, self.tokenizer.encode(QUERY)[0])
        trained = config.get('trained')
        if not isinstance(trained, (datetime.date, type(None))):
            raise ValueError(f'trained is {trained!r}, not a date such as 2026-04-26')
        continuous = self._state is not StateForm.NONE and not c.framework.state_as_text
        return FlowHead(flow_config(c, hidden, layers, Blocks(config.get('blocks', 'auto')), trained, continuous))

    def _fast_head(self, checkpoint: Path, config: Mapping, stop: frozenset[int]) -> FastHead:
        folder = Path(config['fast_tokenizer']).expanduser() if config.get('fast_tokenizer') else checkpoint / 'fast'
        tokenizer, first = FastTokenizer(folder), self.tokenizer.control('<robot_action_0>')
        last = self.tokenizer.control(f'<robot_action_{tokenizer.size - 1}>')
        if last != first + tokenizer.size - 1:
            raise ConfigError(f'the tokenizer of the base model has its {tokenizer.size} action tokens not in one row: '
                              f'the first is {first}, the last {last}')
        ends = stop | {self.tokenizer.control('<|endoftext|>')}
        return FastHead(self.network.decoder, tokenizer, first, config['action_tokens'], ends, self.config.horizon,
                        self.config.action_dim)

    def _given(self, state: np.ndarray) -> torch.Tensor | None:
        """Return the state that the head takes as numbers."""
        if not isinstance(self.network.head, FlowHead) or self.network.head.config.state_dim is None:
            return None
        wanted = self.network.head.config.state_dim
        if state.size != wanted:
            raise ValueError(f'a state of {state.size} numbers, model {self.spec.name} takes {wanted}: choose another '
                             'layout')
        return torch.from_numpy(np.ravel(state)).float()


def load(config: Mapping, options: LoadOptions) -> StarVlaModel:
    """Return the model of a parsed model file; see `registry.load_model`."""
    return StarVlaModel(config, options)


def _indices(numbers: Sequence[int], size: int) -> list[int]:
    wrong = [number for number in numbers if type(number) is not int or not 0 <= number < size]
    if wrong:
        raise ValueError(f'binary names {wrong}: actions have the numbers 0 to {size - 1}')
    return list(numbers)


def _dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        raise ValueError(f'head_dtype is {name!r}: choose one of {list(DTYPES)}')
    return DTYPES[name]
