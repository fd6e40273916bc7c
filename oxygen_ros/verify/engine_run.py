"""Drives an engine by hand for a case: brings observations in, decodes texts, compares what comes out."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Protocol

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
from oxygen_ros.models.interface import PolicyInput, TextTokenizer, VLAModel
from oxygen_ros.verify.report import Report

STEPS_BETWEEN = 2  # decode steps between two observations; the modes without batching decode to the end


class ComparingModel(VLAModel, Protocol):
    """A model that compares what it computes. Its tokenizer writes ids as text, see `NumberTokenizer`."""

    report: Report
    section: str
    mode: str
    tokenizer: TextTokenizer


class EngineRun:
    """
    One engine with one case. Its clock is its own: every look at it is a millisecond later.

    :param must_match: whether texts must be equal to the expected ones.
    """

    def __init__(self, model: ComparingModel, mode: Mode, branch_tokens: int, denoise_steps: int, must_match: bool,
                 ) -> None:
        self.model, self.steps = model, STEPS_BETWEEN if mode is Mode.CONTINUOUS_BATCHING else math.inf
        self._must_match = must_match
        self._texts: dict[int, str] = {}
        self._finished: dict[int, FinishReason] = {}
        self._chunks: list[ActionChunk] = []
        ticks = itertools.count()
        self._now_ns = 0
        config = EngineConfig(SchedulerConfig(mode), max_branches=8, branch_tokens=max(8, branch_tokens),
                              kv_budget_mib=2.0**20, denoise_steps=denoise_steps, max_frame_age=1e9,
                              stream_interval=0.0)
        self.engine = Engine(model, config, self._take, lambda: next(ticks) * 1e-3, lambda: self._now_ns)

    def observe(self, inputs: PolicyInput, instruction: str) -> None:
        """Bring an observation in and have an action made from it."""
        self._now_ns = inputs.stamp_ns
        self.engine.set_instruction(instruction)
        self.engine.observe(inputs)
        self.engine.request_action(self.engine.clock())
        made = len(self._chunks)
        while len(self._chunks) == made:
            self.engine.run_cycle(lambda: True)

    def submit(self, request_id: int, task: str, words: str, tokens: int) -> None:
        """Ask for a text of so many tokens."""
        self.engine.submit(TextRequest(request_id, task, words, SamplingParams(tokens), arrived=self.engine.clock(),
                                       queue_limit=8))

    def decode(self, steps: float = math.inf) -> None:
        """Decode so many steps, or until nothing is left to do."""
        done = 0

        def poll() -> bool:
            nonlocal done
            done += 1
            return done >= steps

        # A finite time to wait until is the next action's, which the engine keeps free: the clock gets there by itself.
        while done < steps and self.engine.run_cycle(poll) != math.inf:
            pass

    def compare(self, name: str, request_id: int, expected: Sequence[int], reason: FinishReason) -> None:
        """Compare a text and how it ended."""
        m = self.model
        tokens = m.tokenizer.encode(self._texts.get(request_id, ''))
        m.report.equal(m.section, name, m.mode, tokens, expected, self._must_match)
        ended = self._finished.get(request_id)
        m.report.equal(m.section, f'{name}.end', m.mode, [ended.value if ended else 0], [reason.value],
                       self._must_match)

    def finish(self, frames: int) -> None:
        """Check that so many chunks were made, and that no slot is lost."""
        m = self.model
        self.engine.check_integrity()
        left = self.engine.cache.spec.branches - self.engine.cache.free_branches
        m.report.equal(m.section, 'chunks made, branches left', m.mode, [len(self._chunks), left], [frames, 0])

    def _take(self, event: Event) -> None:
        if isinstance(event, ActionSkipped):
            raise AssertionError(f'no action was made: {event.reason}')
        if isinstance(event, ActionChunk):
            self._chunks.append(event)
        elif isinstance(event, TextDelta):
            self._texts[event.request.request_id] = self._texts.get(event.request.request_id, '') + event.delta
            if event.finish is not None:
                self._finished[event.request.request_id] = event.finish
