"""Lanes in real time: an engine of one mode with its worker, actions due and texts coming."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from oxygen_ros.bench.inputs import Inputs
from oxygen_ros.bench.lane import BenchFailed
from oxygen_ros.bench.measured_model import Call, MeasuredModel
from oxygen_ros.engine import garbage
from oxygen_ros.engine.config import EngineConfig
from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.requests import ActionChunk, Event, SamplingParams, TextDelta, TextRequest
from oxygen_ros.engine.worker import Worker, WorkerFailed

SETTLE_PERIODS = 3   # of a block that do not count
WAITING = 2          # texts that wait at any time under permanent load


@dataclass
class RealTimeRecord:
    """
    What was measured of a mode; times in seconds.

    :param time: that was measured. :param due: actions that were due in it.
    :param published: when each chunk came. :param lateness: behind its deadline, negative when early.
    """

    time: float = 0.0
    cpu: float = 0.0
    due: int = 0
    published: list[list[float]] = field(default_factory=list)
    lateness: list[float] = field(default_factory=list)
    first_token: list[float] = field(default_factory=list)
    finished: list[float] = field(default_factory=list)
    unfinished: int = 0
    tokens: int = 0
    calls: list[Call] = field(default_factory=list)
    kv_peak: int = 0
    kv_allocated: int = 0


class RealTimeLane:
    """
    One mode under measurement.

    Threads: `run_block` is called by one thread; `_take` by the engine's.
    """

    def __init__(self, model: MeasuredModel, config: EngineConfig, inputs: Inputs, instruction: str, warm_up: int,
                 ) -> None:
        self.record = RealTimeRecord()
        self._model, self._inputs, self._instruction = model, inputs, instruction
        self._events: list[tuple[float, Event]] = []
        self._number = self._requests = 0
        self._refill: int | None = None  # length of the texts of a permanent load
        self._failure: Exception | None = None
        self._clock = self._make_clock()
        self.engine = Engine(model, config, self._take, self._clock)
        self.engine.begin(instruction)
        self.engine.warm_up(inputs.observation(1), warm_up)
        self._worker = Worker(self.engine, self._failed)
        self._begin_work()

    def run_block(self, period: float, seconds: float, arrivals: Sequence[tuple[float, int]], permanent: int | None,
                  ) -> None:
        """
        Run for some seconds and take in what came.

        :param permanent: length of texts of which one always waits; None: texts come as in `arrivals`.
        """
        self._do(lambda engine: engine.begin(self._instruction))
        self._events.clear()
        self._refill = permanent
        start = self._clock() + 0.01
        counted = start + SETTLE_PERIODS * period
        end = counted + seconds
        agenda = [(start + i * period, None) for i in range(int((end - start) / period) + 1)]
        agenda += [(start + after, length) for after, length in arrivals] if permanent is None else []
        if permanent is not None:
            for _ in range(self.engine.config.max_branches + WAITING):
                self._submit(permanent)
        before = None
        for at, length in sorted(agenda, key=lambda entry: entry[0]):
            self._wait_until(at)
            if before is None and at >= counted:
                before = self._counters()
                self._model.take()  # what came before does not count
            if length is not None:
                self._submit(length)
            else:
                self._tick(at + period)
        self._wait_until(end)
        after = self._counters()
        self.record.calls += self._model.take()
        self._refill = None
        self._do(lambda engine: engine.end())
        self.record.due += sum(length is None and counted < at + period <= end for at, length in agenda)
        self._summarise(counted, end, before, after)

    def stop(self) -> None:
        """End the work."""
        self._worker.stop()
        self.engine.close()
        cache = self.engine.cache
        self.record.kv_peak, self.record.kv_allocated = cache.peak_bytes, cache.spec.total_bytes()

    # -- how time passes and the engine is reached; `CpuTimeLane` does it in another way -----------------------------

    def _make_clock(self) -> Callable[[], float]:
        return time.monotonic

    def _begin_work(self) -> None:
        self._worker.start()

    def _post(self, command: Callable[[Engine], object]) -> None:
        self._worker.post(command)

    def _do(self, command: Callable[[Engine], object]) -> object:
        return self._worker.call(command).result()

    def _wait_until(self, at: float) -> None:
        time.sleep(max(0.0, at - self._clock()))
        if self._failure is not None:
            raise BenchFailed(f'the engine failed: {type(self._failure).__name__}: {self._failure}')

    # -- what is done ------------------------------------------------------------------------------------------------

    def _tick(self, deadline: float) -> None:
        self._number += 1
        inputs = self._inputs.observation(self._number)

        def act(engine: Engine) -> None:
            engine.observe(inputs)
            engine.request_action(deadline)

        self._post(act)

    def _submit(self, length: int) -> None:
        self._requests += 1
        request = TextRequest(self._requests, 'speech', sampling=SamplingParams(length), priority=1,
                              arrived=self._clock(), queue_limit=1_000_000)
        self._post(lambda engine: engine.submit(request))

    def _counters(self) -> tuple[int, float]:
        return self._do(lambda engine: engine.statistics.counters.tokens), time.process_time()

    def _take(self, event: Event) -> None:
        self._events.append((self._clock(), event))
        if self._refill is not None and isinstance(event, TextDelta) and event.finish is not None:
            self._submit(self._refill)

    def _failed(self, failure: WorkerFailed) -> None:
        self._failure = failure.error

    def _summarise(self, begin: float, end: float, before: tuple[int, float], after: tuple[int, float]) -> None:
        record = self.record
        record.tokens += after[0] - before[0]
        record.cpu += after[1] - before[1]
        record.time += end - begin
        chunks = []
        for at, event in self._events:
            if isinstance(event, ActionChunk) and begin < event.deadline <= end:
                record.lateness.append(at - event.deadline)
                chunks.append(at)
            elif isinstance(event, TextDelta) and begin <= at < end:
                if event.sequence == 0 and event.tokens:
                    record.first_token.append(event.elapsed)
                if event.finish is not None:
                    if event.tokens == event.request.sampling.max_tokens:
                        record.finished.append(event.elapsed)
                    else:
                        record.unfinished += 1
        record.published.append(chunks)


class CpuClock:
    """Seconds of CPU time of this process, and those that were skipped because there was nothing to do."""

    def __init__(self) -> None:
        self._skipped = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self._skipped + time.process_time()

    def skip_to(self, at: float) -> None:
        """Let time pass without waiting."""
        self._skipped += max(0.0, at - self())


class CpuTimeLane(RealTimeLane):
    """
    A mode whose time is CPU time: what it takes that others use the processor too does not count.

    It shows what a quiet machine would. The engine runs in the calling thread, by the loop of its worker.
    """

    def _make_clock(self) -> CpuClock:
        return CpuClock()

    def _begin_work(self) -> None:
        self._inbox: list[Callable[[Engine], object]] = []
        garbage.set_apart()  # as the worker does

    def _post(self, command: Callable[[Engine], object]) -> None:
        self._inbox.append(command)

    def _do(self, command: Callable[[Engine], object]) -> object:
        self._drain()
        return command(self.engine)

    def _wait_until(self, at: float) -> None:
        while self._clock() < at:
            self._drain()
            wait_until = self.engine.run_cycle(lambda: self._drain() or self._clock() >= at)
            if wait_until is not None and not self._inbox:
                self._clock.skip_to(min(wait_until, at))

    def _drain(self) -> bool:
        commands, self._inbox = self._inbox, []
        for command in commands:
            command(self.engine)
        return bool(commands)
