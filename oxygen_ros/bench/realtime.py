"""
Measures in real time: actions are due with a period, texts arrive as they like, and the engine decodes in the time
between, as it does on a robot.

Modes take turns in blocks of some seconds. Each block begins with an empty engine; its first periods do not count.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from oxygen_ros.bench.inputs import Inputs, instruction_of
from oxygen_ros.bench.lane import BenchFailed
from oxygen_ros.bench.measured_model import Call, MeasuredModel
from oxygen_ros.bench.settings import BenchSettings
from oxygen_ros.bench.workload import Arrivals
from oxygen_ros.engine.config import EngineConfig
from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.requests import ActionChunk, Event, SamplingParams, TextDelta, TextRequest
from oxygen_ros.engine.scheduler import Mode, SchedulerConfig
from oxygen_ros.engine.worker import Worker, WorkerFailed
from oxygen_ros.errors import ConfigError
from oxygen_ros.models.interface import VLAModel

SETTLE_PERIODS = 3   # of a block that do not count
BRANCH_ROOM = 16     # tokens of a branch besides its text
WAITING = 2          # texts that wait at any time under permanent load


@dataclass(frozen=True)
class RealTimeSettings:
    """
    :param period: seconds from action to action; 0 is twice what an action takes.
    :param seconds: measured per mode, at least; :param blocks: into which they are divided.
    :param rate: texts per second; 0 is one per period. With `permanent` there is always one that waits.
    :param branches: texts that run at the same time, at most.
    """

    period: float = 0.0
    seconds: float = 20.0
    blocks: int = 4
    rate: float = 0.0
    permanent: bool = False
    branches: int = 8

    def __post_init__(self) -> None:
        for name, least in (('period', 0), ('seconds', 0.1), ('blocks', 1), ('rate', 0), ('branches', 1)):
            if not getattr(self, name) >= least:
                raise ConfigError(f'{name} is {getattr(self, name)}, must be at least {least}')


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


def arrival_times(arrivals: Arrivals, rate: float, seconds: float, length: int, burst: int, seed: int,
                  ) -> list[tuple[float, int]]:
    """Return when texts arrive (seconds from the start, ascending) and their lengths; the same for the same seed."""
    random = np.random.default_rng(seed)
    if arrivals is Arrivals.POISSON:
        times = np.cumsum(random.exponential(1 / rate, int(2 * rate * seconds) + 20))
    elif arrivals is Arrivals.BURSTY:
        times = np.repeat(np.arange(int(rate * seconds / burst) + 1) * burst / rate, burst)
    else:
        times = np.arange(int(rate * seconds) + 1) / rate
    low = max(1, length // 2)
    lengths = (random.integers(low, 2 * length - low, len(times), endpoint=True) if arrivals is Arrivals.MIXED
               else [length] * len(times))
    return [(float(time), int(n)) for time, n in zip(times, lengths) if time < seconds]


class RealTimeLane:
    """
    One mode under measurement.

    Threads: `run_block` is called by one thread; `_take` by the engine's.
    """

    def __init__(self, model: MeasuredModel, config: EngineConfig, inputs: Inputs, instruction: str, warm_up: int,
                 ) -> None:
        self.record = RealTimeRecord()
        self._model, self._inputs, self._instruction = model, inputs, instruction
        self.engine = Engine(model, config, self._take)
        self._events: list[tuple[float, Event]] = []
        self.engine.begin(instruction)
        self.engine.warm_up(inputs.observation(1), warm_up)
        self._worker = Worker(self.engine, self._failed)
        self._worker.start()
        self._failure: Exception | None = None
        self._number = self._requests = 0
        self._refill: int | None = None  # length of the texts of a permanent load

    def run_block(self, period: float, seconds: float, arrivals: Sequence[tuple[float, int]], permanent: int | None,
                  ) -> None:
        """
        Run for some seconds and take in what came.

        :param permanent: length of texts of which one always waits; None: texts come as in `arrivals`.
        """
        self._worker.call(lambda engine: engine.begin(self._instruction)).result()
        self._events.clear()
        self._refill = permanent
        clock = self.engine.clock
        start = clock() + 0.01
        counted = start + SETTLE_PERIODS * period
        end = counted + seconds
        agenda = [(start + i * period, None) for i in range(int((end - start) / period) + 1)]
        agenda += [(start + after, length) for after, length in arrivals] if permanent is None else []
        if permanent is not None:
            for _ in range(self.engine.config.max_branches + WAITING):
                self._submit(permanent)
        before = None
        for at, length in sorted(agenda, key=lambda entry: entry[0]):
            time.sleep(max(0.0, at - clock()))
            if before is None and at >= counted:
                before = self._counters()
            if length is not None:
                self._submit(length)
            else:
                self._tick(at + period)
            self._check()
        time.sleep(max(0.0, end - clock()))
        after = self._counters()
        self._refill = None
        self._worker.call(lambda engine: engine.end()).result()
        self.record.due += sum(length is None and counted < at + period <= end for at, length in agenda)
        self._summarise(counted, end, before, after)

    def stop(self) -> None:
        """End the worker."""
        self._worker.stop()
        self.engine.close()
        cache = self.engine.cache
        self.record.kv_peak, self.record.kv_allocated = cache.peak_bytes, cache.spec.total_bytes()

    def _tick(self, deadline: float) -> None:
        self._number += 1
        inputs = self._inputs.observation(self._number)

        def act(engine: Engine) -> None:
            engine.observe(inputs)
            engine.request_action(deadline)

        self._worker.post(act)

    def _submit(self, length: int) -> None:
        self._requests += 1
        request = TextRequest(self._requests, 'speech', sampling=SamplingParams(length), priority=1,
                              arrived=self.engine.clock(), queue_limit=1_000_000)
        self._worker.post(lambda engine: engine.submit(request))

    def _counters(self) -> tuple[int, float, float]:
        tokens = self._worker.call(lambda engine: engine.statistics.counters.tokens).result()
        return tokens, time.process_time(), time.perf_counter()

    def _take(self, event: Event) -> None:
        self._events.append((self.engine.clock(), event))
        if self._refill is not None and isinstance(event, TextDelta) and event.finish is not None:
            self._submit(self._refill)

    def _failed(self, failure: WorkerFailed) -> None:
        self._failure = failure.error

    def _check(self) -> None:
        if self._failure is not None:
            raise BenchFailed(f'the engine failed: {type(self._failure).__name__}: {self._failure}')

    def _summarise(self, begin: float, end: float, before: tuple, after: tuple) -> None:
        record = self.record
        record.tokens += after[0] - before[0]
        record.cpu += after[1] - before[1]
        record.time += end - begin
        record.calls += [call for call in self._model.take() if begin <= call.start < end]
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


def measure_real_time(model: VLAModel, settings: BenchSettings, real_time: RealTimeSettings,
                      progress: Callable[[str], None] = lambda text: None) -> tuple[float, dict[str, RealTimeRecord]]:
    """
    Measure all modes, and return the period of actions and what was measured by mode.

    :raises BenchFailed: the engine failed.
    """
    workload = settings.workload
    cameras = len(model.spec.cameras) if settings.cameras is None else settings.cameras
    inputs = Inputs(model, cameras, settings.seed)
    instruction, _ = instruction_of(model, inputs, workload.prompt_tokens)
    measured = MeasuredModel(model)
    lanes: dict[str, RealTimeLane] = {}
    longest = workload.text_length * 2
    room = max(BRANCH_ROOM, len(model.branch_prompt('speech', '')) + 1)
    try:
        for mode in settings.modes:
            progress(f'warming up {mode.value}')
            config = EngineConfig(SchedulerConfig(Mode(mode)), real_time.branches, longest + room,
                                  kv_budget_mib=settings.kv_budget_mib, denoise_steps=workload.denoise_steps,
                                  seed=settings.seed, max_frame_age=1e9)
            lanes[mode.value] = RealTimeLane(measured, config, inputs, instruction, settings.warm_up)
        period = real_time.period or 2 * max(_action_seconds(lane.engine) for lane in lanes.values())
        seconds = real_time.seconds / real_time.blocks
        for block in range(real_time.blocks):
            for name, lane in lanes.items():
                progress(f'block {block + 1} of {real_time.blocks}: {name}')
                arrivals = arrival_times(workload.arrivals, real_time.rate or 1 / period,
                                         seconds + SETTLE_PERIODS * period, workload.text_length, workload.burst,
                                         settings.seed + block)
                lane.run_block(period, seconds, arrivals, workload.text_length if real_time.permanent else None)
    finally:
        for lane in lanes.values():
            lane.stop()
    return period, {name: lane.record for name, lane in lanes.items()}


def _action_seconds(engine: Engine) -> float:
    status = engine.status()
    return status.prefill + status.denoise
