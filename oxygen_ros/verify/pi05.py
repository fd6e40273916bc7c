"""Runs a case of the π0.5 family through engine and cache, in every mode, with texts of different length and frame."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from oxygen_ros.engine.requests import FinishReason
from oxygen_ros.engine.scheduler import Mode
from oxygen_ros.models.checkpoints import LogProgress
from oxygen_ros.models.interface import PolicyInput
from oxygen_ros.models.pi05 import Pi05Model, PrefixMask
from oxygen_ros.models.registry import DTYPES, LoadOptions
from oxygen_ros.verify.case import NumberTokenizer, read_case
from oxygen_ros.verify.engine_run import EngineRun
from oxygen_ros.verify.recorder import BFLOAT16, FLOAT32, Recorder
from oxygen_ros.verify.report import Report

INPUTS = 'inputs.safetensors'
# Names of the prefix masks in the expected values.
MASKS = {'bidirectional': PrefixMask.BIDIRECTIONAL, 'causal_text': PrefixMask.CAUSAL_LANGUAGE}
FRAMES = 4  # observations that the texts of one run are spread over
# Tokens of the expected text that a branch is given as its prompt; 0: it starts from the prefix.
PROMPTS = (0, 3, 0, 1, 6, 0, 2, 5)
# Tokens that a branch ends before the expected text does.
SHORTER = (0, 0, 5, 2, 0, 9, 0, 4)


def run(folder: Path, report: Report, modes: Sequence[Mode], branches: Sequence[int], dtype: str, device: str) -> None:
    """Compare every weights file of a case in every mode and with every number of branches."""
    case = read_case(folder)
    tolerances = FLOAT32 if dtype == 'float32' else BFLOAT16
    for weights in case.weights:
        progress = LogProgress(f'loading {weights.name}', lambda line: print(line, file=sys.stderr))
        model = Pi05Model(case.model_file(), LoadOptions(folder, DTYPES[dtype], device, progress=progress),
                          NumberTokenizer(case.vocabulary), weights)
        for mask, kind in MASKS.items():
            if f'{mask}.text_tokens' not in case.expected['oxygen']:
                continue
            model.prefix_mask = kind
            section = f'{weights.name}, {mask}'
            for mode in modes:
                recorder = Recorder(model, model.spec, case, report, tolerances, section, mode.value, mask, False)
                for number, count in enumerate(branches):
                    _Run(replace(recorder, thorough=number == 0), mode).texts(count)
                test = case.config.get('eos_test')
                if test and test['mode'] == mask:
                    spec = replace(model.spec, stop_tokens=frozenset({test['eos_token_id']}))
                    _Run(replace(recorder, spec=spec), mode).stop(test)


class _Run(EngineRun):
    """One engine with one case."""

    def __init__(self, recorder: Recorder, mode: Mode) -> None:
        self.case, self.mask, self.tokens = recorder.case, recorder.mask, recorder.case.config['text_steps']
        super().__init__(recorder, mode, self.tokens + 1, 10, recorder.tolerances.tokens)

    def texts(self, count: int) -> None:
        """Decode so many texts, spread over observations that come while earlier texts are still decoding."""
        spread = max(FRAMES, self.case.rows)
        frames = max(self.case.rows, min(count, spread))  # every row of the case at least once
        for frame in range(frames):
            row = self._observe(frame)
            for branch in range(frame, count, spread):
                self._submit(branch + 1, row, PROMPTS[branch], self.tokens - PROMPTS[branch] - SHORTER[branch])
            self.decode(self.steps)
        self.decode()
        for branch in range(count):
            row, given = branch % spread % self.case.rows, PROMPTS[branch]
            expected = self._expected(row)[given:self.tokens - SHORTER[branch]]
            self.compare('text_tokens', branch + 1, expected, FinishReason.LENGTH)
        self.finish(frames)

    def stop(self, test: dict) -> None:
        """Decode until a stop token."""
        self._observe(test['row'])
        self._submit(1, test['row'], 0, self.tokens)
        self.decode()
        expected = test['emitted_tokens_including_eos']
        self.compare('eos_test', 1, expected[:-1], FinishReason.STOP)
        self.finish(1)

    def _observe(self, frame: int) -> int:
        """Bring an observation in; return its row of the case."""
        row = frame % self.case.rows
        self.observe(PolicyInput(self.case.observation(row, frame + 1)), self.case.prompt(row))
        return row

    def _submit(self, request_id: int, row: int, prompt: int, tokens: int) -> None:
        words = ' '.join(map(str, self._expected(row)[:prompt]))
        self.submit(request_id, 'answer' if prompt else 'speech', words, tokens)

    def _expected(self, row: int) -> list[int]:
        return self.case.expected['oxygen'][f'{self.mask}.text_tokens'][row].tolist()
