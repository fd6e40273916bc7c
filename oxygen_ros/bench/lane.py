"""Lane: an engine of one mode with its worker, as they run live, that does one frame at a time and is measured."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from oxygen_ros.bench.energy import EnergyMeter
from oxygen_ros.bench.measured_model import Call, MeasuredModel, synchronise
from oxygen_ros.engine.config import EngineConfig
from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.requests import ActionChunk, ActionSkipped, Event, SamplingParams, TextDelta, TextRequest
from oxygen_ros.engine.worker import Worker, WorkerFailed
from oxygen_ros.errors import OxygenError
from oxygen_ros.models.interface import PolicyInput

LONGEST_FRAME = 3600.0  # seconds
MOST_TEXTS = 100_000    # of a frame


class BenchFailed(OxygenError):
    """There is no result: the engine failed, or the modes did not do the same work."""


class LaneClock:
    """Seconds in which a lane works: it stands still while others are measured."""

    def __init__(self) -> None:
        self._before, self._since = 0.0, None

    def __call__(self) -> float:
        """Return the time."""
        since = self._since
        return self._before if since is None else self._before + time.perf_counter() - since

    def resume(self) -> None:
        """Go on."""
        self._since = time.perf_counter()

    def pause(self) -> None:
        """Stand still."""
        self._before, self._since = self(), None


class WatchedEngine(Engine):
    """The product's engine. It tells when it has nothing left to do, and sleeps until it is given more."""

    on_idle: Callable[[], None] = staticmethod(lambda: None)

    def run_cycle(self, poll: Callable[[], bool] = lambda: False) -> float | None:
        """See `Engine.run_cycle`."""
        wait_until = super().run_cycle(poll)
        if wait_until is None:
            return None
        self.on_idle()
        return math.inf


@dataclass(frozen=True, slots=True)
class FrameRecord:
    """
    What a frame took and did.

    :param wall, cpu: seconds from the arrival of the frame until there was nothing left to do.
    :param tokens: of texts, in this frame. :param action_time: seconds until the action was there.
    :param kv_bytes: in use at the end of it. :param began: arrival, of `time.perf_counter`.
    :param joules: None where the platform does not tell.
    """

    number: int
    wall: float
    cpu: float
    tokens: int
    action_time: float = 0.0
    kv_bytes: int = 0
    calls: list[Call] = field(default_factory=list)
    began: float = 0.0
    joules: float | None = None


class Lane:
    """
    One mode under measurement.

    Threads: `run_frame` is called by one thread; the engine works in the worker's, while that waits.

    :param model: shared by all lanes, of which one works at a time.
    """

    def __init__(self, name: str, model: MeasuredModel, config: EngineConfig, instruction: str,
                 example: PolicyInput, warm_up: int, energy: EnergyMeter) -> None:
        self.name, self.model, self.config = name, model, config
        self.clock, self._energy = LaneClock(), energy
        self.events: list[Event] = []  # of the frame in progress
        self.engine = WatchedEngine(model, config, self.events.append, self.clock)
        self.engine.on_idle = self._idle
        self._idle_now, self._end, self._began = threading.Event(), (0.0, 0.0), 0.0
        self._failure: Exception | None = None
        self._arrived: float | None = 0.0  # when the frame came that is worked on, None while there is none
        self.worker = Worker(self.engine, self._failed)
        self.engine.begin(instruction)
        self.clock.resume()
        self.engine.warm_up(example, warm_up)
        self.clock.pause()
        self.engine.begin(instruction)
        self.worker.start()
        self._wait()

    def run_frame(self, inputs: PolicyInput, lengths: Sequence[int]) -> tuple[FrameRecord, list[Event]]:
        """
        Do all that a frame brings: one action, and so many new texts of these lengths.

        :raises BenchFailed: the engine failed.
        """
        self.model.take()
        self.events.clear()
        before = self.engine.statistics.counters.tokens
        self._idle_now.clear()
        synchronise(self.model.spec.device)
        joules = self._energy.read()
        wall, cpu = time.perf_counter(), time.process_time()
        self.clock.resume()
        self.worker.post(lambda engine: self._arrive(engine, inputs, lengths))
        self._wait()
        record = FrameRecord(inputs.number, self._end[0] - wall, self._end[1] - cpu,
                             self.engine.statistics.counters.tokens - before, self._action_time(),
                             self.engine.cache.used_bytes(), self.model.take(), wall,
                             self._energy.used(joules, self._energy.read()))
        return record, list(self.events)

    def drain(self) -> list[Event]:
        """Want no more actions, and let all texts end."""
        self.events.clear()
        self._idle_now.clear()
        self.clock.resume()
        self.worker.post(self._end_actions)
        self._wait()
        return list(self.events)

    def stop(self) -> None:
        """End the worker."""
        self.worker.stop()
        self.engine.close()

    def _arrive(self, engine: Engine, inputs: PolicyInput, lengths: Sequence[int]) -> None:
        self._arrived = self._began = now = engine.clock()
        engine.observe(inputs)
        engine.request_action(now)
        for index, length in enumerate(lengths):
            # The same text has the same number in every lane.
            engine.submit(TextRequest(inputs.number * MOST_TEXTS + index, 'speech', sampling=SamplingParams(length),
                                      priority=0, arrived=now, queue_limit=MOST_TEXTS))

    def _end_actions(self, engine: Engine) -> None:
        self._arrived = engine.clock()
        engine.cancel_action()

    def _idle(self) -> None:
        """In the worker's thread: take the time, before anybody else runs."""
        if self._arrived is None:
            return
        self._arrived = None
        synchronise(self.model.spec.device)
        self._end = time.perf_counter(), time.process_time()
        self.clock.pause()
        self._idle_now.set()

    def _action_time(self) -> float:
        return next((event.finished - self._began for event in self.events if isinstance(event, ActionChunk)), 0.0)

    def _failed(self, failure: WorkerFailed) -> None:
        self._failure = failure.error
        self._idle_now.set()

    def _wait(self) -> None:
        if not self._idle_now.wait(LONGEST_FRAME):
            raise BenchFailed(f'{self.name}: a frame took longer than {LONGEST_FRAME:.0f} s')
        if self._failure is not None:
            raise BenchFailed(f'{self.name}: the engine failed: {type(self._failure).__name__}: {self._failure}')


def check_frame(name: str, record: FrameRecord, events: Sequence[Event]) -> None:
    """
    Check that a frame gave its action, and that no text ended early.

    :raises BenchFailed: it did not.
    """
    chunks = [event for event in events if isinstance(event, ActionChunk)]
    if any(isinstance(event, ActionSkipped) for event in events) or len(chunks) != 1:
        raise BenchFailed(f'{name}: frame {record.number} gave {len(chunks)} actions instead of 1')
    for event in events:
        if isinstance(event, TextDelta) and event.finish is not None and (
                event.tokens != event.request.sampling.max_tokens):
            raise BenchFailed(f'{name}: a text ended after {event.tokens} of {event.request.sampling.max_tokens} '
                              f'tokens ({event.finish.name} {event.message})')
