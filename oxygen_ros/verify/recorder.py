"""Stands between the engine and the model: hands in a case's noise, and compares what the model computes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.models.interface import ModelSpec, PolicyInput
from oxygen_ros.models.layers import rms_norm, time_embedding
from oxygen_ros.models.pi05 import Pi05Model
from oxygen_ros.models.realtime_chunking import ChunkingMethod, GuidanceSchedule, PreviousChunk
from oxygen_ros.verify.case import Case
from oxygen_ros.verify.fed_tokens import FedTokens
from oxygen_ros.verify.report import Report, Tolerance

TIMES = (1.0, 0.5, 0.1)
STEPS = (10, 5)
TRAINED_DELAY = 3  # of the case's vectors for trained real-time chunking
DELAY, REACH = 2, 5  # and for the guided one


def _percent(value: float, most: float = math.inf) -> Tolerance:
    return Tolerance(0.0, most, value / 100)


@dataclass(frozen=True)
class Tolerances:
    """What may differ, by kind of quantity; `tokens` tells whether texts must be equal."""

    tensor: Tolerance = Tolerance(1e-4, 1e-4)
    velocity: Tolerance = Tolerance(1e-4, 1e-4)
    actions: Tolerance = Tolerance(0.0, 1e-3)
    continued: Tolerance = Tolerance(0.0, 1e-3)  # actions of real-time chunking
    logprobs: Tolerance = Tolerance(0.0, 1e-3)
    tokens: bool = True


FLOAT32 = Tolerances()
# What the reference's own bfloat16 mode is off: 0.52 % and at most 0.07 on actions, 1.1 % on velocities. For the others
# nobody says; an 8-bit mantissa alone rounds by up to 0.4 %.
BFLOAT16 = Tolerances(_percent(2), _percent(1.1), _percent(0.52, 0.07), _percent(1), _percent(3), tokens=False)


@dataclass
class Recorder:
    """
    A model for the engine that computes with `model` and compares on the way; implements `VLAModel`.

    :param section, mode: where in the report; the section names the prefix mask of the expected values, `mask`.
    :param thorough: also compare what the engine itself does not ask for: velocities, other step counts, real-time
        chunking, hidden states of all tokens.
    """

    model: Pi05Model
    spec: ModelSpec
    case: Case
    report: Report
    tolerances: Tolerances
    section: str
    mode: str
    mask: str
    thorough: bool
    _rows: dict[int, int] = field(default_factory=dict)     # frame slot -> row of the case
    _fed: FedTokens = field(default_factory=FedTokens)

    def __post_init__(self) -> None:
        self.tokenizer = self.model.tokenizer
        self.branch_prompt = self.model.branch_prompt

    def prefill(self, inputs: PolicyInput, instruction: str, cache: UnifiedKVCache, frame: int) -> None:
        """Prefill and compare keys, values and embeddings; a row of the case has the number `row + 1 + i * rows`."""
        seen = []
        hook = self.model.network.vision.register_forward_hook(lambda module, given, result: seen.append(result))
        self.model.prefill(inputs, instruction, cache, frame)
        hook.remove()
        row = self._rows[frame] = (inputs.number - 1) % self.case.rows
        valid = self.case.valid(row)
        count = int(valid.sum())
        state = cache.frames[frame]
        self._equal('prefix_position_ids', [state.length, state.next_position - 1],
                    [count, self._expected('prefix_position_ids', row)[valid][-1]])
        self._equal('prefix_mask', valid.tolist(), self._expected('prefix_mask', row).tolist())
        seed = valid.nonzero().flatten()[state.length - 1]
        self._equal('text_seed_position', [seed], [self._expected('text_seed_position', row)])
        images = valid[:-self.case.config['max_token_len']]
        self._close('image_embeds', seen[0].flatten(0, 1), self._oxygen('common.image_embeds')[row][images])
        for layer in range(self.spec.layers):
            for name, pool in (('prefix_k', cache.frame_k), ('prefix_v', cache.frame_v)):
                if f'{self.mask}.{name}.{layer}' in self.case.expected['oxygen']:
                    self._each(f'{name}.{layer}', row, pool[layer, frame, :, :count], lambda x: x[:, valid])
        if self.thorough:
            self._hidden(inputs, instruction, cache, frame, row, valid)

    def denoise(self, cache: UnifiedKVCache, frame: int, noise: torch.Tensor, steps: int) -> torch.Tensor:
        """Denoise the case's noise and compare; return the actions."""
        row = self._rows[frame]
        noise = self.case.inputs['noise'][row]
        actions = self.model.denoise(cache, frame, noise, steps)
        self._each(f'actions.n{steps}', row, actions, tolerance=self.tolerances.actions)
        if self.thorough:
            self._flow(cache, frame, row, noise)
        return actions

    def prefix_logits(self, cache: UnifiedKVCache, frame: int) -> torch.Tensor:
        """Return and compare the logits of the first token."""
        logits = self.model.prefix_logits(cache, frame)
        row = self._rows[frame]
        self._close('text_seed_logits', logits, self._expected('text_seed_logits', row), self.tolerances.logprobs)
        self._logprobs(row, 0, logits)
        return logits

    def extend(self, cache: UnifiedKVCache, slots: Sequence[int], tokens: Sequence[Sequence[int]]) -> torch.Tensor:
        """Extend and compare the log-probabilities of every branch that has followed the expected text so far."""
        logits, branches = self._fed.extend(self.model, cache, slots, tokens)
        for frame, fed, values in branches:
            row = self._rows[frame]
            expected = self._expected('text_tokens', row).tolist()
            if fed == expected[:len(fed)] and len(fed) < len(expected):
                self._logprobs(row, len(fed), values)
        return logits

    def _hidden(self, inputs: PolicyInput, instruction: str, cache: UnifiedKVCache, frame: int, row: int,
                valid: torch.Tensor) -> None:
        """Compare the output of all tokens, which the product has no use for; the slot holds the same afterwards."""
        network, device = self.model.network, self.spec.device
        tokens = torch.tensor(self.tokenizer.encode(instruction), device=device)
        x, mask = network.prefix(self.model.pixels(inputs.observation.images), tokens, self.mask != 'bidirectional')
        if self.mask == 'bidirectional' and 'lerobot' in self.case.expected:
            self._close('lerobot.prefix_embs', x, self.case.expected['lerobot']['prefix_embs'][row][valid])
        hidden = rms_norm(network.decoder.prefill(x, cache, frame, mask, all_hidden=True), network.decoder.norm)
        self._each('prefix_hidden', row, hidden, lambda expected: expected[valid])
        padded = network.decoder.embed(self.case.inputs['tokens'][row].to(device))
        self._close('language_embeds', padded, self._oxygen('common.language_embeds')[row])

    def _flow(self, cache: UnifiedKVCache, frame: int, row: int, noise: torch.Tensor) -> None:
        expert, noise = self.model.network.expert, noise.to(self.spec.device)
        for number, t in enumerate(TIMES):
            self._close('time_sincos', time_embedding(t, expert.config.width),
                        self._oxygen('common.time_sincos')[number])
            self._close(f'adarms_cond.t{t}', expert.condition(t), self._expected(f'adarms_cond.t{t}', row))
            self._each(f'velocity.t{t}', row, expert.velocity(noise, expert.modulation(t), cache, frame),
                       tolerance=self.tolerances.velocity)
        for steps in STEPS:
            self._each(f'actions.n{steps}', row, self.model.denoise(cache, frame, noise, steps),
                       tolerance=self.tolerances.actions)
        if self.mask != 'bidirectional' or 'lerobot' not in self.case.expected:
            return
        expected, previous = self.case.expected['lerobot'], self.case.inputs['rtc_prev_chunk'][row]
        chunks = {f'guided_{s.value}': PreviousChunk(previous, DELAY, REACH, schedule=s) for s in GuidanceSchedule}
        chunks[f'trained_delay{TRAINED_DELAY}'] = PreviousChunk(previous, TRAINED_DELAY, REACH, ChunkingMethod.TRAINED)
        for name, chunk in chunks.items():
            if chunk.method is ChunkingMethod.GUIDED:
                self._close(f'rtc.{name}.weights', chunk.weights(self.spec.horizon), expected[f'rtc.{name}.weights'])
            moved = PreviousChunk(previous.to(self.spec.device), chunk.delay, chunk.reach, chunk.method, chunk.schedule)
            self._close(f'rtc.{name}.actions.n10', expert.denoise(noise, cache, frame, 10, moved),
                        expected[f'rtc.{name}.actions.n10'][row], self.tolerances.continued)

    def _logprobs(self, row: int, position: int, logits: torch.Tensor) -> None:
        self._close('text_logprobs', logits.log_softmax(-1), self._expected('text_logprobs', row)[position],
                    self.tolerances.logprobs)

    def _oxygen(self, name: str) -> torch.Tensor:
        return self.case.expected['oxygen'][name]

    def _expected(self, name: str, row: int) -> torch.Tensor:
        return self._oxygen(f'{self.mask}.{name}')[row]

    def _each(self, name: str, row: int, got: torch.Tensor, pick=lambda expected: expected,
              tolerance: Tolerance | None = None) -> None:
        """Compare with OxyGen's value, and with LeRobot's where it has one."""
        self._close(name, got, pick(self._expected(name, row)), tolerance)
        lerobot = self.case.expected.get('lerobot', {})
        if self.mask == 'bidirectional' and name in lerobot:
            self._close(f'lerobot.{name}', got, pick(lerobot[name][row]), tolerance)

    def _close(self, name: str, got: torch.Tensor, expected: torch.Tensor, tolerance: Tolerance | None = None) -> None:
        self.report.close(self.section, name, self.mode, got.float().cpu(), expected.float(),
                          tolerance or self.tolerances.tensor)

    def _equal(self, name: str, got: Sequence[int], expected: Sequence[int]) -> None:
        self.report.equal(self.section, name, self.mode, list(map(int, got)), list(map(int, expected)))
