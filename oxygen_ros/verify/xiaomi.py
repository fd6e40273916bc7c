"""Runs a case of Xiaomi-Robotics-0 through engine and cache, in every mode, with texts of different kind and frame."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.engine.scheduler import Mode
from oxygen_ros.models.interface import PolicyInput
from oxygen_ros.models.xiaomi_dit import Asynchrony
from oxygen_ros.models.xiaomi_robotics import XiaomiModel
from oxygen_ros.observation import Observation
from oxygen_ros.verify.qwen3_vl import WORDS, QwenCase, QwenRecorder, read_arrays, read_content, run_case
from oxygen_ros.verify.report import Report

RELEASED, ASYNCHRONOUS = 'released form', 'asynchronous form'


class Case(QwenCase):
    """A case of Xiaomi-Robotics-0."""

    @property
    def instructions(self) -> Sequence[str]:
        """One for each row."""
        return self.content['instructions']

    @property
    def steps(self) -> int:
        """Flow-matching steps."""
        return self.content['num_steps']

    def model_file(self) -> dict:
        """Return the content of a model file for this case."""
        return {'name': self.folder.name, 'robot_type': self.content['robot_type'],
                'views': {view: view for view in self.content['views']}, 'action_period': 0.1,
                'denoise_steps': self.steps, 'image_tokens': 64, 'prompt_tokens': 256, 'tasks': WORDS,
                'text_head_trained': True}

    def observation(self, row: int, number: int) -> PolicyInput:
        """Return an observation of a row."""
        images = {view: self.inputs[f'image_{row}_{i}'] for i, view in enumerate(self.content['views'])}
        return PolicyInput(Observation(number, number, images), self.inputs['state'][row].ravel().astype(np.float64))

    def first_image(self, row: int) -> int:
        """Return the number of images in the rows before."""
        return row * len(self.content['views'])


def run(folder: Path, report: Report, modes: Sequence[Mode], branches: Sequence[int], dtype: str, device: str) -> None:
    """
    Compare a case in every mode and with every number of branches.

    :raises ConfigError: a file is missing or cannot be read.
    """
    case = Case(folder, read_content(folder), *read_arrays(folder))
    model = XiaomiModel(case.model_file(), case.load_options(dtype, device))
    run_case(Recorder, model, case, report, modes, branches, RELEASED)


class Recorder(QwenRecorder):
    """Compares what is Xiaomi-Robotics-0's own."""

    def denoise(self, cache: UnifiedKVCache, frame: int, noise: torch.Tensor, steps: int) -> torch.Tensor:
        """Denoise the case's noise and compare; return the actions."""
        row = self.rows[frame]
        noise = torch.from_numpy(self.case.inputs['noise'][row])
        actions = self.model.denoise(cache, frame, noise, steps)
        self.close('actions', actions, self.case.expected['actions'][row])
        self.close('raw_actions', self.model.raw_actions(cache, frame, noise, steps),
                   self.case.expected['raw_actions'][row])
        if self.thorough:
            self.equal('action_mask', self.model.mask.flatten().tolist(), self.case.inputs['action_mask'][row].ravel())
            self._flow(cache, frame, row, steps)
            self._asynchronous(cache, frame, row, noise, steps)
        return actions

    def _flow(self, cache: UnifiedKVCache, frame: int, row: int, steps: int) -> None:
        """Compare the velocity of every step at the expected sample."""
        dit, device, expected = self.model.network.dit, self.spec.device, self.case.expected
        standing = dit.standing(cache.extras['state'][frame], cache.frames[frame].next_position,
                                self.model.network.rotary())
        for step in range(steps):
            x = torch.from_numpy(expected['x_t'][step, row]).to(device)
            velocity = dit.velocity(x, self.model.mask, dit.modulation(step / steps), cache, frame, standing)
            self.close('velocity', velocity, expected['velocity'][step, row])
            if step + 1 < steps:
                self.close('x_t', x + velocity / steps, expected['x_t'][step + 1, row])
        self._own_tokens('dit', cache, frame, row, Asynchrony(), 0)

    def _asynchronous(self, cache: UnifiedKVCache, frame: int, row: int, noise: torch.Tensor, steps: int) -> None:
        released, content = self.model.asynchrony, self.case.content
        given = torch.from_numpy(self.case.inputs['prefix_actions'][row])
        self.section = ASYNCHRONOUS
        self.model.asynchrony = Asynchrony(content['rope_offset'], content['local_window'])
        for name, fixed in (('async_raw_actions', given), ('async_noprefix_raw_actions', None)):
            self.close(name, self.model.raw_actions(cache, frame, noise, steps, fixed), self.case.expected[name][row])
        self._own_tokens('async', cache, frame, row, self.model.asynchrony, len(given))
        self.section, self.model.asynchrony = RELEASED, released

    def _own_tokens(self, name: str, cache: UnifiedKVCache, frame: int, row: int, form: Asynchrony, fixed: int) -> None:
        """Compare positions of the head's tokens, and who sees whom of them."""
        dit = self.model.network.dit
        positions = dit.positions(cache.frames[frame].next_position, fixed, form).expand(3, -1)
        self.equal(f'{name}_position_ids', positions.flatten().tolist(),
                   self.case.expected[f'{name}_position_ids'][:, row].ravel())
        own = self.case.expected[f'{name}_attn_mask'][row, 0][:, -dit.config.tokens:]
        self.equal(f'{name}_attn_mask', dit.visible(form).flatten().tolist(), own.ravel())
