"""A clock that tests move, a model that says what it is told to and takes the time it is told to, and a rig of both."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable

import numpy as np
import torch

from oxygen_ros.engine.config import EngineConfig
from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.requests import ActionChunk, ActionSkipped, SamplingParams, TextDelta, TextRequest
from oxygen_ros.engine.scheduler import Mode, SchedulerConfig
from oxygen_ros.models.interface import ModelSpec, PolicyInput
from oxygen_ros.observation import Observation

EOS, REPLY, VOCABULARY = 256, 260, 300
TASKS = {'answer': 257, 'speech': 258, 'memory': 259}


class FakeClock:
    """Seconds that pass only when told to."""

    def __init__(self, now: float = 100.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class ByteTokenizer:
    """Tokens 0..255 are bytes, all others control tokens."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else b''


class FakeModel:
    """
    Implements VLAModel. `says` maps a task (or the question of an answer) to the bytes that are generated; a text that
    is not in it goes on for ever. `calls` records what ran: (stage, start, end, what).

    The cache's keys hold the tokens themselves, so that a branch is really read back from its slot.
    """

    def __init__(self, clock: FakeClock, *, prefill: float = 0.05, denoise: float = 0.05, extend: float = 0.01,
                 decode: float = 0.01, in_prefix: bool = True) -> None:
        self.clock = clock
        self.seconds = {'prefill': prefill, 'denoise': denoise, 'extend': extend, 'decode': decode}
        self.says: dict[str, bytes] = {}
        self.calls: list[tuple[str, float, float, object]] = []
        self.raises: Callable[[str, object], bool] = lambda stage, what: False
        self.undefined: Callable[[list[int]], bool] = lambda content: False
        self.tokenizer = ByteTokenizer()
        self.spec = ModelSpec(
            name='fake', weights='none', random_weights=True, layers=1, kv_heads=1, head_dim=2, vocabulary=VOCABULARY,
            prefix_tokens=4, branch_tokens=1000, horizon=3, action_dim=2, action_period=0.1, cameras=('head',),
            denoise_steps=2, stop_tokens=frozenset({EOS}), prefix_has_instruction=in_prefix)

    def count(self, stage: str) -> int:
        return sum(call[0] == stage for call in self.calls)

    def _work(self, stage: str, what: object) -> None:
        start = self.clock.now
        self.clock.now += self.seconds[stage]
        if self.raises(stage, what):
            raise RuntimeError(f'{stage} failed')
        self.calls.append((stage, start, self.clock.now, what))

    def prefill(self, inputs, instruction, cache, frame):
        self._work('prefill', inputs.number)
        cache.frame_k[0, frame, 0, :3] = inputs.number % 1000
        cache.set_frame(frame, 3, 3)

    def denoise(self, cache, frame, noise, steps):
        number = float(cache.frame_k[0, frame, 0, 0, 0])
        self._work('denoise', int(number))
        return noise + number

    def prefix_logits(self, cache, frame):
        if self.raises('prefix', frame):
            raise RuntimeError('prefix failed')
        return self._one_hot(self._next([REPLY]))

    def extend(self, cache, slots, tokens):
        assert list(slots) == sorted(set(slots)) and all(tokens)
        contents = []
        for slot, new in zip(slots, tokens):
            length = cache.branches[slot].length
            old = [int(t) for t in cache.branch_k[0, slot, 0, :length, 0]]
            contents.append(old + list(new))
        self._work('decode' if all(len(new) == 1 for new in tokens) and any(len(c) > 1 for c in contents) else 'extend',
                   contents)
        for slot, new in zip(slots, tokens):
            length = cache.branches[slot].length
            cache.branch_k[0, slot, 0, length:length + len(new), 0] = torch.tensor(new, dtype=torch.float32)
            cache.advance_branch(slot, len(new))
        return torch.stack([torch.full((VOCABULARY,), torch.nan) if self.undefined(content)
                            else self._one_hot(self._next(content)) for content in contents])

    def branch_prompt(self, task, text):
        if task == 'unprompted':
            return []
        return [TASKS[task], *self.tokenizer.encode(text), REPLY]

    def _next(self, content: list[int]) -> int:
        prompt, said = (content[:content.index(REPLY)], content[content.index(REPLY) + 1:]
                        ) if REPLY in content else ([], content)
        names = {number: name for name, number in TASKS.items()}
        task = names[prompt[0]] if prompt else 'unprompted'
        script = self.says.get(bytes(prompt[1:]).decode() if task == 'answer' else task)
        if script is None:
            return ord('a') + len(said) % 26
        return script[len(said)] if len(said) < len(script) else EOS

    @staticmethod
    def _one_hot(token: int) -> torch.Tensor:
        return torch.nn.functional.one_hot(torch.tensor(token), VOCABULARY).float() * 50


class Rig:
    """An engine on a fake clock, with things that happen at set times (`at`)."""

    def __init__(self, model: FakeModel | None = None, *, mode: Mode = Mode.CONTINUOUS_BATCHING,
                 tokens_per_cycle: int = 0, **config) -> None:
        self.clock = model.clock if model else FakeClock()
        self.model = model or FakeModel(self.clock)
        self.events: list = []
        config.setdefault('stream_interval', 0.0)
        scheduler = SchedulerConfig(mode, tokens_per_cycle)
        self.engine = Engine(self.model, EngineConfig(scheduler, **config), self.events.append, self.clock,
                             lambda: int(self.clock.now * 1e9))
        self._agenda: list[tuple[float, int, Callable[[], object]]] = []
        self._order = itertools.count()
        self._ids = itertools.count(1)

    def at(self, time: float, action: Callable[[], object]) -> None:
        heapq.heappush(self._agenda, (time, next(self._order), action))

    def observe(self, number: int, age: float = 0.0) -> None:
        image = np.zeros((2, 2, 3), np.uint8)
        self.engine.observe(PolicyInput(Observation(number, int((self.clock.now - age) * 1e9), {'head': image})))

    def submit(self, task: str = 'speech', text: str = '', max_tokens: int = 5, timeout: float | None = None,
               sampling: SamplingParams | None = None, **fields) -> int:
        request_id, now = next(self._ids), self.clock.now
        fields.setdefault('priority', 0)  # may use every branch
        self.engine.submit(TextRequest(request_id, task, text, sampling or SamplingParams(max_tokens), arrived=now,
                                       expires=None if timeout is None else now + timeout, **fields))
        return request_id

    def act_every(self, period: float, until: float) -> None:
        """As a robot does it: a new observation, and an action due one period later."""
        def tick(number: int) -> None:
            self.observe(number)
            self.engine.request_action(start + number * period)

        start = self.clock.now
        for number in range(1, round((until - start) / period) + 1):
            self.at(start + (number - 1) * period, lambda number=number: tick(number))

    def run(self, until: float | None = None) -> None:
        """Run cycles until a time, or until there is nothing to do; checks the cache after each."""
        idle = 0
        if until is not None:
            self.at(until, lambda: None)  # ends a decode phase in progress
        while until is None or self.clock.now < until:
            self._arrivals()
            before = self.clock.now
            wait = self.engine.run_cycle(self._arrivals)
            self.engine.check_integrity()
            if wait is not None:
                wait = min([wait, *(time for time, _, _ in self._agenda[:1]), *([until] if until else [])])
                if wait == float('inf'):
                    return
                self.clock.now = max(self.clock.now, wait)
            idle = idle + 1 if self.clock.now == before else 0
            assert idle < 1000, 'the engine spins without getting on'

    def _arrivals(self) -> bool:
        arrived = False
        while self._agenda and self._agenda[0][0] <= self.clock.now + 1e-12:
            heapq.heappop(self._agenda)[2]()
            arrived = True
        return arrived

    def texts(self) -> dict[int, str]:
        """Return request id -> all its text so far."""
        result: dict[int, str] = {}
        for event in self.events:
            if isinstance(event, TextDelta):
                result[event.request.request_id] = result.get(event.request.request_id, '') + event.delta
        return result

    def ends(self) -> dict:
        """Return request id -> why it ended."""
        finished = [event for event in self.events if isinstance(event, TextDelta) and event.finish is not None]
        ids = [event.request.request_id for event in finished]
        assert len(ids) == len(set(ids)), 'a text ended twice'
        return {event.request.request_id: event.finish for event in finished}

    def chunks(self) -> list[ActionChunk]:
        return [event for event in self.events if isinstance(event, ActionChunk)]

    def skipped(self) -> list[ActionSkipped]:
        return [event for event in self.events if isinstance(event, ActionSkipped)]
