"""
What the engine asks of a model family. One adapter file per family implements `VLAModel`.

The engine owns the cache and decides what runs when; the adapter knows what a prefix consists of, how its action head
reads the cache, and how task prompts look. Every method runs in the engine's thread, under `torch.inference_mode`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch

from oxygen_ros.engine.kv_cache import CacheSpec, ExtraSpec, UnifiedKVCache
from oxygen_ros.errors import ConfigError
from oxygen_ros.models.checkpoint_statistics import CheckpointStatistics
from oxygen_ros.models.prompt_context import NO_CONTEXT, ContextKind, PromptContext
from oxygen_ros.observation import Observation


@dataclass(frozen=True)
class ModelSpec:
    """
    Sizes and properties of a loaded model.

    :param weights: where the weights come from, for people: 'random, seed 0' or a path.
    :param random_weights: True if no output means anything.
    :param prefix_tokens: most tokens of a prefix. :param branch_tokens: most tokens of a branch.
    :param horizon: actions per chunk.
    :param action_dim: numbers per action in model space, padding included.
    :param action_period: seconds between two actions of a chunk.
    :param first_action_offset: action i is the target for the time of the frame plus (i + this) periods.
    :param cameras: names of the cameras that the model was made for, in order.
    :param denoise_steps: default number of flow-matching steps.
    :param stop_tokens: tokens that end a text.
    :param suppressed_tokens: tokens that are never generated.
    :param prefix_has_instruction: True if the instruction is part of the prefix, so that a new one needs a new prefill.
    :param layers: decoder layers with K and V; kv_heads, head_dim: sizes of a key.
    :param text_head_trained: False if the model was never trained to speak, so that its texts would be garbage.
    :param has_subtasks: the model can be asked for the next subtask of a task, see `VLAModel.prefill_subtask`.
    :param context: what its prompts can tell besides the text itself; see `VLAModel.branch_prompt`.
    :param statistics: of states and actions, from the checkpoint; None if it brings none along.
    :param scratch_tokens: that the action head writes behind the prefix of a frame; None: as many as actions.
    :param action_branch_tokens: most tokens of the branch that actions are decoded on; 0: they are not. The cache then
        has one branch more, which texts leave free.
    """

    name: str
    weights: str
    random_weights: bool
    layers: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    prefix_tokens: int
    branch_tokens: int
    horizon: int
    action_dim: int
    action_period: float
    cameras: tuple[str, ...]
    denoise_steps: int
    stop_tokens: frozenset[int]
    suppressed_tokens: tuple[int, ...] = ()
    first_action_offset: int = 0
    prefix_has_instruction: bool = True
    dtype: torch.dtype = torch.float32
    device: str = 'cpu'
    frame_extras: Mapping[str, ExtraSpec] = field(default_factory=dict)
    text_head_trained: bool = True
    has_subtasks: bool = False
    context: frozenset[ContextKind] = frozenset()
    statistics: CheckpointStatistics | None = None
    scratch_tokens: int | None = None
    action_branch_tokens: int = 0

    @property
    def action_branches(self) -> int:
        """Branches that texts leave free for actions."""
        return int(self.action_branch_tokens > 0)

    def cache_spec(self, frames: int, branches: int, branch_tokens: int) -> CacheSpec:
        """
        Return the cache that this model needs for so many frames and branches.

        :raises ConfigError: the model has no positions for branches of so many tokens.
        """
        if branch_tokens > self.branch_tokens:
            raise ConfigError(f'branch_tokens is {branch_tokens}, model {self.name!r} has positions for '
                              f'{self.branch_tokens}: lower it')
        scratch = self.horizon if self.scratch_tokens is None else self.scratch_tokens
        return CacheSpec(self.layers, self.kv_heads, self.head_dim, self.prefix_tokens, scratch,
                         max(branch_tokens, self.action_branch_tokens), frames, branches + self.action_branches,
                         self.dtype, self.device, self.frame_extras)


@dataclass(frozen=True)
class PolicyInput:
    """
    One observation as a model sees it, still independent of the model family.

    :param observation: images by the names of `ModelSpec.cameras`; absent cameras are masked.
    :param state: float64 [state joints], normalised; empty if the model takes no state.
    """

    observation: Observation
    state: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @property
    def number(self) -> int:
        """Frame number."""
        return self.observation.number

    @property
    def stamp_ns(self) -> int:
        """Stamp of the observation in nanoseconds."""
        return self.observation.stamp_ns


class TextTokenizer(Protocol):
    """What the engine and the tasks need of a tokenizer."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of plain text. Never gives control tokens, whatever the text says."""
        ...

    def token_bytes(self, token: int) -> bytes:
        """Return the UTF-8 bytes that a token stands for; empty for control tokens."""
        ...


class VLAModel(Protocol):
    """A model family behind the engine. `tiny.py` is the example to start from."""

    spec: ModelSpec
    tokenizer: TextTokenizer

    def prefill(self, inputs: PolicyInput, instruction: str, cache: UnifiedKVCache, frame: int) -> None:
        """Write the prefix of an observation into a frame slot and call `cache.set_frame`."""
        ...

    def prefill_subtask(self, inputs: PolicyInput, task: str, cache: UnifiedKVCache, frame: int) -> None:
        """
        Like `prefill`, with the prompt behind which the model says what to do next; only with `spec.has_subtasks`.

        :param task: what the robot shall achieve in the end.
        """
        ...

    def denoise(self, cache: UnifiedKVCache, frame: int, noise: torch.Tensor, steps: int) -> torch.Tensor:
        """
        Generate an action chunk behind a frame. May write the scratch tokens of the slot, nothing else.

        :param noise: float32 [horizon, action_dim], the sample at flow time "noise".
        :returns: float32 [horizon, action_dim] on the CPU, in normalised model space.
        """
        ...

    def prefix_logits(self, cache: UnifiedKVCache, frame: int) -> torch.Tensor:
        """Return the logits float32 [vocabulary] of the first token of a branch without a prompt."""
        ...

    def extend(self, cache: UnifiedKVCache, slots: Sequence[int], tokens: Sequence[Sequence[int]]) -> torch.Tensor:
        """
        Add tokens to several branches at once: prompts, or one token each (a decode step).

        Writes K and V and calls `cache.advance_branch`.

        :param slots: branch slots, ascending. :param tokens: at least one token for each.
        :returns: logits float32 [branches, vocabulary] behind the last new token of each branch.
        """
        ...

    def branch_prompt(self, task: str, text: str, context: PromptContext = NO_CONTEXT) -> list[int]:
        """
        Return the prompt tokens of a text task behind a frame.

        :param task: 'speech' (say what you see or do), 'answer' (text is a question), 'memory' (note what you see).
            A 'subtask' needs no prompt of its own: it goes on from its prefix.
        :param context: what else to tell, of the kinds in `spec.context` only; without any the parameter may be absent.
            Notes in it are data of unknown origin: quoted, never tokens of control or a turn of their own.
        """
        ...
