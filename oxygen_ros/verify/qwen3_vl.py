"""What the cases of the families on Qwen3-VL share: their files, texts of all kinds, a model that compares."""

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
from oxygen_ros.models.interface import ModelSpec, PolicyInput, VLAModel
from oxygen_ros.models.layers import rms_norm
from oxygen_ros.models.qwen3_vl_prefix import Prefix
from oxygen_ros.models.registry import DTYPES, LoadOptions
from oxygen_ros.verify.case import NumberTokenizer
from oxygen_ros.verify.engine_run import EngineRun
from oxygen_ros.verify.fed_tokens import FedTokens
from oxygen_ros.verify.report import Report, Tolerance

CASE = 'case.json'
TOLERANCE = Tolerance(0.0, 2e-4)
FRAMES = 4  # observations that the texts of one run are spread over
# Task of each text in turn, and the name of the expected values. Without words it goes on from the prefix.
TEXTS = (('answer', 'text'), ('speech', 'speech'), ('memory', 'memory'))
# Tokens that a branch ends before the expected text does.
SHORTER = (0, 0, 3, 2, 5, 0, 0, 4)
WORDS = {'speech': 'Say what the robot does.', 'answer': '{text}', 'memory': 'Update the memory.'}


@dataclass(frozen=True)
class QwenCase:
    """:param content: parsed case.json. :param inputs, expected: arrays by name."""

    folder: Path
    content: Mapping
    inputs: Mapping[str, np.ndarray]
    expected: Mapping[str, np.ndarray]

    @property
    def instructions(self) -> Sequence[str]:
        """One for each row, that is for each observation."""
        raise NotImplementedError

    @property
    def steps(self) -> int:
        """Flow-matching steps; 0 is what the model says."""
        raise NotImplementedError

    @property
    def rows(self) -> int:
        """Number of observations."""
        return len(self.instructions)

    def observation(self, row: int, number: int) -> PolicyInput:
        """Return an observation of a row."""
        raise NotImplementedError

    def real(self, row: int) -> np.ndarray:
        """Return which tokens of a padded prefix are real, bool [tokens]."""
        return self.inputs['attention_mask'][row] == 1

    def first_image(self, row: int) -> int:
        """Return the number of images in the rows before."""
        raise NotImplementedError

    def load_options(self, dtype: str, device: str) -> LoadOptions:
        """Return options for the model of this case. :raises ConfigError: it says nothing about a dtype."""
        if dtype != 'float32':
            raise ConfigError(f'case {str(self.folder)!r} says nothing about {dtype}: choose float32')
        progress = LogProgress(f'loading {self.folder.name}', lambda line: print(line, file=sys.stderr))
        return LoadOptions(self.folder, DTYPES[dtype], device, progress=progress)


def read_content(folder: Path) -> dict:
    """Return the parsed case.json, or raise ConfigError."""
    return read_json(folder / CASE, f'case file {folder / CASE}')


def read_arrays(folder: Path) -> tuple[Mapping[str, np.ndarray], Mapping[str, np.ndarray]]:
    """
    Return inputs and expected values.

    :raises ConfigError: a file is missing or cannot be read.
    """
    try:
        inputs, expected = (dict(np.load(folder / f'{name}.npz', allow_pickle=False))
                            for name in ('inputs', 'expected'))
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise ConfigError(f'case {str(folder)!r} cannot be read: {error}') from error
    return inputs, expected


class QwenRun(EngineRun):
    """One engine with one case."""

    def __init__(self, recorder: QwenRecorder, mode: Mode) -> None:
        self.case = recorder.case
        longest = max(self.case.inputs[f'{name}_suffix_ids'].shape[1] + self._expected(name, 0).size
                      for name in ('speech', 'memory'))
        super().__init__(recorder, mode, longest + 1, self.case.steps, True)

    def texts(self, count: int) -> None:
        """Decode so many texts, spread over observations that come while earlier texts are still decoding."""
        frames = max(self.case.rows, min(count, FRAMES))
        for frame in range(frames):
            row = frame % self.case.rows
            self.observe(self.case.observation(row, frame + 1), self.case.instructions[row])
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
class QwenRecorder:
    """
    A model for the engine that computes with `model` and compares on the way; implements `VLAModel`.

    :param thorough: also compare what the engine itself does not ask for, such as inputs, hidden states and every step
        of the flow.
    """

    model: VLAModel
    spec: ModelSpec
    case: QwenCase
    report: Report
    mode: str
    thorough: bool
    section: str
    rows: dict[int, int] = field(default_factory=dict)  # frame slot -> row of the case
    _fed: FedTokens = field(default_factory=FedTokens)

    def __post_init__(self) -> None:
        self.tokenizer = NumberTokenizer(self.spec.vocabulary)
        self.branch_prompt = self.model.branch_prompt

    def prefill(self, inputs: PolicyInput, instruction: str, cache: UnifiedKVCache, frame: int) -> None:
        """Prefill and compare keys and values; a row of the case has the number `row + 1 + i * rows`."""
        row = self.rows[frame] = (inputs.number - 1) % self.case.rows
        self.model.prefill(inputs, instruction, cache, frame)
        state, real = cache.frames[frame], self.case.real(row)
        last = int(self.case.inputs['position_ids'][:, row, real].max())
        self.equal('prefix length, next position', [state.length, state.next_position], [real.sum(), last + 1])
        for name, pool in (('kv_keys', cache.frame_k), ('kv_values', cache.frame_v)):
            self.close(name, pool[:, frame, :, :state.length], self.case.expected[name][:, row][:, :, real])
        if self.thorough:
            self._prefix(inputs, instruction, cache, frame, row)

    def prefix_logits(self, cache: UnifiedKVCache, frame: int) -> torch.Tensor:
        """Return and compare the logits of the first token."""
        logits = self.model.prefix_logits(cache, frame)
        self.close('text_logits', logits, self.case.expected['text_logits'][self.rows[frame], 0])
        return logits

    def extend(self, cache: UnifiedKVCache, slots: Sequence[int], tokens: Sequence[Sequence[int]]) -> torch.Tensor:
        """Extend and compare the logits of every branch that has followed an expected text so far."""
        logits, branches = self._fed.extend(self.model, cache, slots, tokens)
        for frame, fed, values in branches:
            row = self.rows[frame]
            for _, name in TEXTS:
                prompt = self.case.inputs[f'{name}_suffix_ids'][row].tolist() if name != 'text' else []
                text = [*prompt, *self.case.expected[f'{name}_ids'][row].tolist()]
                if len(prompt) <= len(fed) < len(text) and fed == text[:len(fed)]:
                    self.close(f'{name}_logits', values,
                               self.case.expected[f'{name}_logits'][row, len(fed) - len(prompt)])
        return logits

    def _prefix(self, inputs: PolicyInput, instruction: str, cache: UnifiedKVCache, frame: int, row: int) -> None:
        """Compare inputs, and hidden states that the product has no use for."""
        given, prefix, real = self.case.inputs, self.model.prefix(inputs, instruction), self.case.real(row)
        self.equal('input_ids', prefix.tokens, given['input_ids'][row][real])
        positions = given['position_ids'][:, row, real]
        self.equal('position_ids', prefix.positions.flatten().tolist(), positions.ravel())
        self._pictures(prefix, row)
        captured: list[torch.Tensor] = []
        self.model.prefill(inputs, instruction, cache, frame, captured)  # the slot holds the same afterwards
        self.close('vlm_last_hidden_after_final_norm', rms_norm(captured[-1], self.model.network.decoder.norm),
                   self.case.expected['vlm_last_hidden_after_final_norm'][row, real])
        if 'vlm_hidden_states' in self.case.expected:
            self.close('vlm_hidden_states', torch.stack(captured),
                       self.case.expected['vlm_hidden_states'][:, row][:, real])

    def _pictures(self, prefix: Prefix, row: int) -> None:
        given, first = self.case.inputs, self.case.first_image(row)
        grids = given['image_grid_thw'][first:first + len(prefix.grids)]
        self.equal('image_grid_thw', prefix.grids.flatten().tolist(), grids.ravel())
        start = int(given['image_grid_thw'][:first].prod(axis=1).sum())
        pixels = given['pixel_values'][start:start + int(grids.prod(axis=1).sum())]
        self.close('pixel_values', prefix.pixels, pixels, Tolerance(0.0, 1e-6))

    def close(self, name: str, got: torch.Tensor, expected: np.ndarray, tolerance: Tolerance = TOLERANCE) -> None:
        """Compare numbers with an expected array."""
        self.report.close(self.section, name, self.mode, got.float().cpu(), torch.from_numpy(np.array(expected)),
                          tolerance)

    def equal(self, name: str, got: Sequence[int], expected: Sequence[int]) -> None:
        """Compare whole numbers, which must be equal."""
        self.report.equal(self.section, name, self.mode, list(map(int, got)), list(map(int, expected)))


def run_case(recorder: type[QwenRecorder], model: VLAModel, case: QwenCase, report: Report, modes: Sequence[Mode],
             branches: Sequence[int], section: str) -> None:
    """Compare a case in every mode and with every number of branches, under a section of the report."""
    # The expected texts go on behind every token.
    spec = replace(model.spec, stop_tokens=frozenset(), suppressed_tokens=())
    for mode in modes:
        for number, count in enumerate(branches):
            QwenRun(recorder(model, spec, case, report, mode.value, number == 0, section), mode).texts(count)
