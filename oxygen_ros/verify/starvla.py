"""Runs a case of StarVLA through engine and cache, in every mode, with texts of different kind and frame."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.engine.scheduler import Mode
from oxygen_ros.models.interface import PolicyInput
from oxygen_ros.models.starvla import StarVlaModel
from oxygen_ros.models.starvla_flow import FlowHead
from oxygen_ros.models.starvla_oft import QUERIES
from oxygen_ros.observation import Observation
from oxygen_ros.robot.normalization import Normalizer
from oxygen_ros.verify.qwen3_vl import WORDS, QwenCase, QwenRecorder, read_arrays, read_content, run_case
from oxygen_ros.verify.report import Report

WRITTEN = datetime.date(2026, 8, 10)  # the version of StarVLA that the cases were made with
MODES = {'min_max': 'min_max', 'q99': 'quantile'}  # StarVLA's word for a kind of statistics, and ours


class Case(QwenCase):
    """A case of StarVLA."""

    @property
    def instructions(self) -> Sequence[str]:
        """One for each row."""
        return self.content['lang']

    @property
    def steps(self) -> int:
        """Flow-matching steps: the model knows."""
        return 0

    def model_file(self) -> dict:
        """Return the content of a model file for this case."""
        last = next(iter(self.expected['actions'])).shape[-1] - 1
        return {'name': self.folder.name, 'robot_type': self.content['unnorm_key'],
                'cameras': self._cameras(max(self.content['num_images'])), 'action_period': 0.1,
                'normalisation': MODES[self.content['norm_mode']],
                'binary': [last] if self.content['last_dim'] == 'binary' else [],
                'trained': WRITTEN, 'state': 'normalised' if self.content['has_state'] else 'none', 'image_tokens': 64,
                'prompt_tokens': 256, 'weights': self.content['checkpoint'], 'tasks': WORDS, 'text_head_trained': True}

    def observation(self, row: int, number: int) -> PolicyInput:
        """Return an observation of a row."""
        names = self._cameras(self.content['num_images'][row])
        images = {name: self.inputs[f'image_{row}_{i}'] for i, name in enumerate(names)}
        state = self.inputs[f'state_{row}'][0].astype(np.float64) if self.content['has_state'] else np.zeros(0)
        return PolicyInput(Observation(number, number, images), state)

    def first_image(self, row: int) -> int:
        """Return the number of images in the rows before."""
        return sum(self.content['num_images'][:row])

    def _cameras(self, count: int) -> list[str]:
        return [f'camera{i}' for i in range(count)]


def run(folder: Path, report: Report, modes: Sequence[Mode], branches: Sequence[int], dtype: str, device: str) -> None:
    """
    Compare a case in every mode and with every number of branches.

    :raises ConfigError: a file is missing or cannot be read.
    """
    case = Case(folder, read_content(folder), *read_arrays(folder))
    model = StarVlaModel(case.model_file(), case.load_options(dtype, device))
    run_case(Recorder, model, case, report, modes, branches, case.content['framework'])


class Recorder(QwenRecorder):
    """Compares what is StarVLA's own."""

    def denoise(self, cache: UnifiedKVCache, frame: int, noise: torch.Tensor, steps: int) -> torch.Tensor:
        """Denoise the case's noise and compare; return the actions."""
        row, expected = self.rows[frame], self.case.expected
        if 'noise' in self.case.inputs:
            noise = torch.from_numpy(self.case.inputs['noise'][row])
        actions = self.model.denoise(cache, frame, noise, steps)
        statistics, size = self.spec.statistics, self.spec.action_dim
        units = Normalizer(statistics.of_actions(size), statistics.epsilon).unnormalize(actions.numpy())
        self.close('actions', torch.from_numpy(units), expected['actions'][row])
        self.close('normalized_actions', self.model.raw_actions(cache, frame, noise, steps),
                   expected['normalized_actions'][row])
        if QUERIES in cache.extras:
            self.close('action_queries', cache.extras[QUERIES][frame], expected['action_queries'][row])
        elif self.thorough:
            self._flow(self.model.network.head, cache, frame, row, steps)
        return actions

    def prefix_logits(self, cache: UnifiedKVCache, frame: int) -> torch.Tensor:
        """Return and compare the logits of the first token, which a case has twice."""
        logits = super().prefix_logits(cache, frame)
        self.close('first_logits', logits, self.case.expected['first_logits'][self.rows[frame]])
        return logits

    def _flow(self, head: FlowHead, cache: UnifiedKVCache, frame: int, row: int, steps: int) -> None:
        """Compare the velocity of every step at the expected sample."""
        expected, schedule, context = self.case.expected, head.schedule(steps), head.context(cache, frame)
        self.equal('t_bucket', schedule.buckets, expected['t_bucket'][:, row])
        for step in range(steps):
            x = torch.from_numpy(expected['x_t'][step, row]).to(self.spec.device)
            velocity = head.velocity(x, schedule, step, cache, frame, context)
            self.close('velocity', velocity, expected['velocity'][step, row])
            if step + 1 < steps:
                self.close('x_t', x + velocity / steps, expected['x_t'][step + 1, row])
