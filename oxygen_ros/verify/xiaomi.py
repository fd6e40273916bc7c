"""Runs a case of Xiaomi-Robotics-0 through engine and cache, in every mode, with texts of different kind and frame."""

from __future__ import annotations

import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.engine.requests import FinishReason
from oxygen_ros.engine.scheduler import Mode
from oxygen_ros.errors import ConfigError
from oxygen_ros.models.checkpoint_statistics import read_json
from oxygen_ros.models.checkpoints import LogProgress
from oxygen_ros.models.interface import ModelSpec, PolicyInput
from oxygen_ros.models.layers import rms_norm
from oxygen_ros.models.registry import DTYPES, LoadOptions
from oxygen_ros.models.xiaomi_dit import Asynchrony
from oxygen_ros.models.xiaomi_robotics import XiaomiModel
from oxygen_ros.observation import Observation
from oxygen_ros.verify.case import NumberTokenizer
from oxygen_ros.verify.engine_run import EngineRun
from oxygen_ros.verify.fed_tokens import FedTokens
from oxygen_ros.verify.report import Report, Tolerance

CASE = 'case.json'
TOLERANCE = Tolerance(0.0, 2e-4)
FRAMES = 4  # observations that the texts of one run are spread over
# Task of each text in turn, its words, and the name of the expected values. Without words it goes on from the prefix.
TEXTS = (('answer', 'text'), ('speech', 'speech'), ('memory', 'memory'))
# Tokens that a branch ends before the expected text does.
SHORTER = (0, 0, 3, 2, 5, 0, 0, 4)
WORDS = {'speech': 'Say what the robot does.', 'answer': '{text}', 'memory': 'Update the memory.'}


@dataclass(frozen=True)
class Case:
    """:param content: parsed case.json. :param inputs, expected: arrays by name, the second axis of some is the row."""

    folder: Path
    content: Mapping
    inputs: Mapping[str, np.ndarray]
    expected: Mapping[str, np.ndarray]

    @property
    def rows(self) -> int:
        """Number of observations."""
        return len(self.content['instructions'])

    def model_file(self) -> dict:
        """Return the content of a model file for this case."""
        return {'name': self.folder.name, 'robot_type': self.content['robot_type'],
                'views': {view: view for view in self.content['views']}, 'action_period': 0.1,
                'denoise_steps': self.content['num_steps'], 'image_tokens': 64, 'prompt_tokens': 256, 'tasks': WORDS,
                'text_head_trained': True}

    def observation(self, row: int, number: int) -> PolicyInput:
        """Return an observation of a row."""
        images = {view: self.inputs[f'image_{row}_{i}'] for i, view in enumerate(self.content['views'])}
        return PolicyInput(Observation(number, number, images), self.inputs['state'][row].ravel().astype(np.float64))


def read_case(folder: Path) -> Case:
    """
    Read a case directory.

    :raises ConfigError: a file is missing or cannot be read, or it is a case of another family.
    """
    content = read_json(folder / CASE, f'case file {folder / CASE}')
    if 'robot_type' not in content:
        raise ConfigError(f'case {str(folder)!r} is of framework {content.get("framework")}, which this version '
                          'cannot run')
    try:
        arrays = [dict(np.load(folder / f'{name}.npz', allow_pickle=False)) for name in ('inputs', 'expected')]
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigError(f'case {str(folder)!r} cannot be read: {error}') from error
    return Case(folder, content, *arrays)


def run(folder: Path, report: Report, modes: Sequence[Mode], branches: Sequence[int], dtype: str, device: str) -> None:
    """Compare a case in every mode and with every number of branches."""
    case = read_case(folder)
    if dtype != 'float32':
        raise ConfigError(f'case {str(folder)!r} says nothing about {dtype}: choose float32')
    progress = LogProgress(f'loading {folder.name}', lambda line: print(line, file=sys.stderr))
    model = XiaomiModel(case.model_file(), LoadOptions(folder, DTYPES[dtype], device, progress=progress))
    # The expected texts go on behind every token.
    spec = replace(model.spec, stop_tokens=frozenset(), suppressed_tokens=())
    for mode in modes:
        for number, count in enumerate(branches):
            _Run(Recorder(model, spec, case, report, mode.value, number == 0), mode).texts(count)


class _Run(EngineRun):
    """One engine with one case."""

    def __init__(self, recorder: Recorder, mode: Mode) -> None:
        self.case = recorder.case
        longest = max(self.case.inputs[f'{name}_suffix_ids'].shape[1] + self._expected(name, 0).size
                      for name in ('speech', 'memory'))
        super().__init__(recorder, mode, longest + 1, self.case.content['num_steps'], True)

    def texts(self, count: int) -> None:
        """Decode so many texts, spread over observations that come while earlier texts are still decoding."""
        frames = max(self.case.rows, min(count, FRAMES))
        for frame in range(frames):
            row = frame % self.case.rows
            self.observe(self.case.observation(row, frame + 1), self.case.content['instructions'][row])
            for branch in range(frame, count, FRAMES):
                task, name = TEXTS[branch % len(TEXTS)]
                self.submit(branch + 1, task, '', self._expected(name, row).size - SHORTER[branch])
            self.decode(self.steps)
        self.decode()
        for branch in range(count):
            name, row = TEXTS[branch % len(TEXTS)][1], branch % FRAMES % self.case.rows
            expected = self._expected(name, row).tolist()
            self.compare(f'{name}_ids', branch + 1, expected[:len(expected) - SHORTER[branch]], FinishReason.LENGTH)
        self.finish(frames)

    def _expected(self, name: str, row: int) -> np.ndarray:
        return self.case.expected[f'{name}_ids'][row]


@dataclass
class Recorder:
    """
    A model for the engine that computes with `model` and compares on the way; implements `VLAModel`.

    :param thorough: also compare what the engine itself does not ask for: inputs, hidden states, every step of the
        flow, and the asynchronous form.
    """

    model: XiaomiModel
    spec: ModelSpec
    case: Case
    report: Report
    mode: str
    thorough: bool
    section: str = 'released form'
    _rows: dict[int, int] = field(default_factory=dict)  # frame slot -> row of the case
    _fed: FedTokens = field(default_factory=FedTokens)

    def __post_init__(self) -> None:
        self.tokenizer = NumberTokenizer(self.spec.vocabulary)
        self.branch_prompt = self.model.branch_prompt

    def prefill(self, inputs: PolicyInput, instruction: str, cache: UnifiedKVCache, frame: int) -> None:
        """Prefill and compare keys and values; a row of the case has the number `row + 1 + i * rows`."""
        row = self._rows[frame] = (inputs.number - 1) % self.case.rows
        self.model.prefill(inputs, instruction, cache, frame)
        state, count = cache.frames[frame], self._count(row)
        first = self.case.expected['dit_position_ids'][:, row, 0]
        self._equal('prefix length, next position', [state.length, *[state.next_position] * 3], [count, *first])
        for name, pool in (('kv_keys', cache.frame_k), ('kv_values', cache.frame_v)):
            self._close(name, pool[:, frame, :, :count], self.case.expected[name][:, row, :, :count])
        if self.thorough:
            self._prefix(inputs, instruction, cache, frame, row)

    def denoise(self, cache: UnifiedKVCache, frame: int, noise: torch.Tensor, steps: int) -> torch.Tensor:
        """Denoise the case's noise and compare; return the actions."""
        row = self._rows[frame]
        noise = torch.from_numpy(self.case.inputs['noise'][row])
        actions = self.model.denoise(cache, frame, noise, steps)
        self._close('actions', actions, self.case.expected['actions'][row])
        self._close('raw_actions', self.model.raw_actions(cache, frame, noise, steps),
                    self.case.expected['raw_actions'][row])
        if self.thorough:
            self._flow(cache, frame, row, steps)
            self._asynchronous(cache, frame, row, noise, steps)
        return actions

    def prefix_logits(self, cache: UnifiedKVCache, frame: int) -> torch.Tensor:
        """Return and compare the logits of the first token."""
        logits = self.model.prefix_logits(cache, frame)
        self._close('text_logits', logits, self.case.expected['text_logits'][self._rows[frame], 0])
        return logits

    def extend(self, cache: UnifiedKVCache, slots: Sequence[int], tokens: Sequence[Sequence[int]]) -> torch.Tensor:
        """Extend and compare the logits of every branch that has followed an expected text so far."""
        logits, branches = self._fed.extend(self.model, cache, slots, tokens)
        for frame, fed, values in branches:
            row = self._rows[frame]
            for _, name in TEXTS:
                prompt = self.case.inputs[f'{name}_suffix_ids'][row].tolist() if name != 'text' else []
                text = [*prompt, *self.case.expected[f'{name}_ids'][row].tolist()]
                if len(prompt) <= len(fed) < len(text) and fed == text[:len(fed)]:
                    self._close(f'{name}_logits', values,
                                self.case.expected[f'{name}_logits'][row, len(fed) - len(prompt)])
        return logits

    def _count(self, row: int) -> int:
        return int(self.case.inputs['attention_mask'][row].sum())

    def _prefix(self, inputs: PolicyInput, instruction: str, cache: UnifiedKVCache, frame: int, row: int) -> None:
        """Compare inputs and the output of all tokens, which the product has no use for."""
        given, views = self.case.inputs, len(self.case.content['views'])
        prefix = self.model.prefix(inputs, instruction)
        self._equal('input_ids', prefix.tokens, given['input_ids'][row][given['attention_mask'][row] == 1])
        grids = given['image_grid_thw'][row * views:(row + 1) * views]
        self._equal('image_grid_thw', prefix.grids.flatten().tolist(), grids.ravel())
        first = int(given['image_grid_thw'][:row * views].prod(axis=1).sum())
        pixels = given['pixel_values'][first:first + int(grids.prod(axis=1).sum())]
        self._close('pixel_values', prefix.pixels, pixels, Tolerance(0.0, 1e-6))
        positions = given['position_ids'][:, row, :self._count(row)]
        self._equal('position_ids', prefix.positions.flatten().tolist(), positions.ravel())
        self._equal('action_mask', self.model.mask.flatten().tolist(), given['action_mask'][row].ravel())
        captured: list[torch.Tensor] = []
        self.model.prefill(inputs, instruction, cache, frame, captured)  # the slot holds the same afterwards
        self._close('vlm_last_hidden_after_final_norm', rms_norm(captured[-1], self.model.network.decoder.norm),
                    self.case.expected['vlm_last_hidden_after_final_norm'][row, :self._count(row)])

    def _flow(self, cache: UnifiedKVCache, frame: int, row: int, steps: int) -> None:
        """Compare the velocity of every step at the expected sample."""
        dit, device, expected = self.model.network.dit, self.spec.device, self.case.expected
        standing = dit.standing(cache.extras['state'][frame], cache.frames[frame].next_position,
                                self.model.network.rotary())
        for step in range(steps):
            x = torch.from_numpy(expected['x_t'][step, row]).to(device)
            velocity = dit.velocity(x, self.model.mask, dit.modulation(step / steps), cache, frame, standing)
            self._close('velocity', velocity, expected['velocity'][step, row])
            if step + 1 < steps:
                self._close('x_t', x + velocity / steps, expected['x_t'][step + 1, row])
        self._own_tokens('dit', cache, frame, row, Asynchrony(), 0)

    def _asynchronous(self, cache: UnifiedKVCache, frame: int, row: int, noise: torch.Tensor, steps: int) -> None:
        released, content = self.model.asynchrony, self.case.content
        given = torch.from_numpy(self.case.inputs['prefix_actions'][row])
        self.section, self.model.asynchrony = 'asynchronous form', Asynchrony(content['rope_offset'],
                                                                              content['local_window'])
        for name, fixed in (('async_raw_actions', given), ('async_noprefix_raw_actions', None)):
            self._close(name, self.model.raw_actions(cache, frame, noise, steps, fixed), self.case.expected[name][row])
        self._own_tokens('async', cache, frame, row, self.model.asynchrony, len(given))
        self.section, self.model.asynchrony = 'released form', released

    def _own_tokens(self, name: str, cache: UnifiedKVCache, frame: int, row: int, form: Asynchrony, fixed: int) -> None:
        """Compare positions of the head's tokens, and who sees whom of them."""
        dit = self.model.network.dit
        positions = dit.positions(cache.frames[frame].next_position, fixed, form).expand(3, -1)
        self._equal(f'{name}_position_ids', positions.flatten().tolist(),
                    self.case.expected[f'{name}_position_ids'][:, row].ravel())
        own = self.case.expected[f'{name}_attn_mask'][row, 0][:, -dit.config.tokens:]
        self._equal(f'{name}_attn_mask', dit.visible(form).flatten().tolist(), own.ravel())

    def _close(self, name: str, got: torch.Tensor, expected: np.ndarray, tolerance: Tolerance = TOLERANCE) -> None:
        self.report.close(self.section, name, self.mode, got.float().cpu(), torch.from_numpy(np.array(expected)),
                          tolerance)

    def _equal(self, name: str, got: Sequence[int], expected: Sequence[int]) -> None:
        self.report.equal(self.section, name, self.mode, list(map(int, got)), list(map(int, expected)))
