"""Runs a case of the π0.5 family through engine and cache, in every mode, with texts of different length and frame."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from oxygen_ros.engine.config import EngineConfig
from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.requests import (
    ActionChunk,
    ActionSkipped,
    Event,
    FinishReason,
    SamplingParams,
    TextDelta,
    TextRequest,
)
from oxygen_ros.engine.scheduler import Mode, SchedulerConfig
from oxygen_ros.models.checkpoints import LogProgress
from oxygen_ros.models.interface import PolicyInput
from oxygen_ros.models.pi05 import Pi05Model, PrefixMask
from oxygen_ros.models.registry import DTYPES, LoadOptions
from oxygen_ros.verify.case import NumberTokenizer, read_case
from oxygen_ros.verify.recorder import BFLOAT16, FLOAT32, Recorder
from oxygen_ros.verify.report import Report

INPUTS = 'inputs.safetensors'
# Names of the prefix masks in the expected values.
MASKS = {'bidirectional': PrefixMask.BIDIRECTIONAL, 'causal_text': PrefixMask.CAUSAL_LANGUAGE}
FRAMES = 4  # observations that the texts of one run are spread over
STEPS_BETWEEN = 2  # decode steps between two observations; the modes without batching decode to the end
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


class _Run:
    """One engine with one case. Its clock is its own: every look at it is a millisecond later."""

    def __init__(self, recorder: Recorder, mode: Mode) -> None:
        self.recorder, self.case = recorder, recorder.case
        self._steps = STEPS_BETWEEN if mode is Mode.CONTINUOUS_BATCHING else math.inf
        self.tokens = self.case.config['text_steps']
        self._texts: dict[int, str] = {}
        self._finished: dict[int, FinishReason] = {}
        self._chunks: list[ActionChunk] = []
        ticks = itertools.count()
        self._now_ns = 0
        config = EngineConfig(SchedulerConfig(mode), max_branches=8, branch_tokens=max(8, self.tokens + 1),
                              kv_budget_mib=2.0**20, denoise_steps=10, max_frame_age=1e9, stream_interval=0.0)
        self.engine = Engine(recorder, config, self._take, lambda: next(ticks) * 1e-3, lambda: self._now_ns)

    def texts(self, count: int) -> None:
        """Decode so many texts, spread over observations that come while earlier texts are still decoding."""
        spread = max(FRAMES, self.case.rows)
        frames = max(self.case.rows, min(count, spread))  # every row of the case at least once
        for frame in range(frames):
            row = self._observe(frame)
            for branch in range(frame, count, spread):
                self._submit(branch + 1, row, PROMPTS[branch], self.tokens - PROMPTS[branch] - SHORTER[branch])
            self._decode(self._steps)
        self._decode()
        for branch in range(count):
            row, given = branch % spread % self.case.rows, PROMPTS[branch]
            expected = self._expected(row)[given:self.tokens - SHORTER[branch]]
            self._compare('text_tokens', branch + 1, expected, FinishReason.LENGTH)
        self._finish(frames)

    def stop(self, test: dict) -> None:
        """Decode until a stop token."""
        self._observe(test['row'])
        self._submit(1, test['row'], 0, self.tokens)
        self._decode()
        expected = test['emitted_tokens_including_eos']
        self._compare('eos_test', 1, expected[:-1], FinishReason.STOP)
        self._finish(1)

    def _observe(self, frame: int) -> int:
        """Bring an observation in and have an action made from it; return its row of the case."""
        row = frame % self.case.rows
        self._now_ns = frame + 1
        self.engine.set_instruction(self.case.prompt(row))
        self.engine.observe(PolicyInput(self.case.observation(row, frame + 1)))
        self.engine.request_action(self.engine.clock())
        made = len(self._chunks)
        while len(self._chunks) == made:
            self.engine.run_cycle(lambda: True)
        return row

    def _submit(self, request_id: int, row: int, prompt: int, tokens: int) -> None:
        words = ' '.join(map(str, self._expected(row)[:prompt]))
        self.engine.submit(TextRequest(request_id, 'answer' if prompt else 'speech', words, SamplingParams(tokens),
                                       arrived=self.engine.clock(), queue_limit=8))

    def _decode(self, steps: float = math.inf) -> None:
        """Decode so many steps, or until nothing is left to do."""
        done = 0

        def poll() -> bool:
            nonlocal done
            done += 1
            return done >= steps

        while done < steps and self.engine.run_cycle(poll) is None:
            pass

    def _expected(self, row: int) -> list[int]:
        return self.case.expected['oxygen'][f'{self.recorder.mask}.text_tokens'][row].tolist()

    def _compare(self, name: str, request_id: int, expected: list[int], reason: FinishReason) -> None:
        r = self.recorder
        tokens = self.recorder.tokenizer.encode(self._texts.get(request_id, ''))
        r.report.equal(r.section, name, r.mode, tokens, expected, r.tolerances.tokens)
        ended = self._finished.get(request_id)
        r.report.equal(r.section, f'{name}.end', r.mode, [ended.value if ended else 0], [reason.value],
                       r.tolerances.tokens)

    def _finish(self, frames: int) -> None:
        r = self.recorder
        self.engine.check_integrity()
        left = self.engine.cache.spec.branches - self.engine.cache.free_branches
        r.report.equal(r.section, 'chunks made, branches left', r.mode, [len(self._chunks), left], [frames, 0])

    def _take(self, event: Event) -> None:
        if isinstance(event, ActionSkipped):
            raise AssertionError(f'no action was made: {event.reason}')
        if isinstance(event, ActionChunk):
            self._chunks.append(event)
        elif isinstance(event, TextDelta):
            self._texts[event.request.request_id] = self._texts.get(event.request.request_id, '') + event.delta
            if event.finish is not None:
                self._finished[event.request.request_id] = event.finish
