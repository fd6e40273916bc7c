"""A short life of an engine with a real network, for tests of what must not change its results."""

from __future__ import annotations

import torch
from engine_fakes import FakeClock
from small_policy import policy_input

from oxygen_ros.engine.config import EngineConfig
from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.requests import ActionChunk, SamplingParams, TextDelta, TextRequest


def life(model, **options) -> tuple[list[tuple[int, str]], list[torch.Tensor]]:
    """Return the texts, as request and piece, and the actions of an engine's three frames with two texts each."""
    clock, events = FakeClock(), []
    engine = Engine(model, EngineConfig(max_branches=3, **options), events.append, clock, lambda: int(clock.now * 1e9))
    engine.warm_up(policy_input(0, int(clock.now * 1e9)), 1)
    for number in range(1, 4):
        engine.observe(policy_input(number, int(clock.now * 1e9)))
        engine.request_action(clock.now)
        for i in range(2):
            engine.submit(TextRequest(10 * number + i, 'answer', 'is it red', SamplingParams(6 + i), priority=0))
        while engine.run_cycle() is None:
            engine.check_integrity()
    texts = [(event.request.request_id, event.delta) for event in events if isinstance(event, TextDelta)]
    return texts, [torch.from_numpy(event.actions) for event in events if isinstance(event, ActionChunk)]
