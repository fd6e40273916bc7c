"""Measures modes against each other, frame by frame and mode by mode, so that noise of the machine hits all alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import psutil

from oxygen_ros.bench.bare import BareLane
from oxygen_ros.bench.energy import EnergyMeter
from oxygen_ros.bench.inputs import Inputs, instruction_of
from oxygen_ros.bench.lane import BenchFailed, FrameRecord, Lane, check_frame
from oxygen_ros.bench.measured_model import MeasuredModel
from oxygen_ros.bench.probes import Probes
from oxygen_ros.bench.settings import BenchSettings
from oxygen_ros.bench.workload import Arrivals, most_running
from oxygen_ros.engine.config import EngineConfig
from oxygen_ros.engine.requests import ActionChunk, Event, TextDelta
from oxygen_ros.engine.scheduler import Mode, SchedulerConfig
from oxygen_ros.models.interface import VLAModel

MIB = 1 << 20
WARM_FRAMES = 2  # of the modes whose frames do not depend on those before
DETAILED = 300   # frames whose calls, texts and actions are kept; of more, their list would be what grows
BRANCH_ROOM = 16  # tokens of a branch besides its text


@dataclass
class ModeRecord:
    """
    What was measured of a mode.

    :param frames, bare: of the rounds that count, frame by frame; `bare` without the engine.
    :param first_token, finished: seconds from the arrival of a text to its first piece, and to its end.
    :param texts: by request id. :param actions: by frame number. :param all_tokens: of texts that ended, all rounds.
    :param kv_peak: bytes in use at most. :param kv_allocated: bytes of both pools. :param slots: of the branch pool.
    """

    frames: list[FrameRecord] = field(default_factory=list)
    bare: list[FrameRecord] = field(default_factory=list)
    first_token: list[float] = field(default_factory=list)
    finished: list[float] = field(default_factory=list)
    texts: dict[int, str] = field(default_factory=dict)
    actions: dict[int, object] = field(default_factory=dict)
    all_tokens: int = 0
    kv_peak: int = 0
    kv_allocated: int = 0
    slots: int = 0

    def take(self, events: Sequence[Event], counts: bool) -> None:
        """Take in what a frame brought."""
        detailed = len(self.frames) < DETAILED
        for event in events:
            if isinstance(event, ActionChunk) and detailed:
                self.actions[event.inputs.number] = event.actions
            elif isinstance(event, TextDelta):
                number = event.request.request_id
                if detailed:
                    self.texts[number] = self.texts.get(number, '') + event.delta
                self.all_tokens += event.tokens if event.finish is not None else 0
                if counts and event.sequence == 0:
                    self.first_token.append(event.elapsed)
                if counts and event.finish is not None:
                    self.finished.append(event.elapsed)


@dataclass
class CaseRecord:
    """What was measured of a workload: modes by name, and the prefix that every frame had."""

    settings: BenchSettings
    modes: dict[str, ModeRecord]
    prefix_tokens: int
    cameras: int
    probes: Probes
    memory: list[int] = field(default_factory=list)  # bytes of this process, round by round


def measure(model: VLAModel, settings: BenchSettings, progress: Callable[[str], None] = lambda text: None,
            ) -> CaseRecord:
    """
    Measure all modes on one workload.

    :raises BenchFailed: the modes did not do the same work, or the engine failed.
    """
    workload = settings.workload
    cameras = len(model.spec.cameras) if settings.cameras is None else settings.cameras
    inputs = Inputs(model, cameras, settings.seed)
    instruction, prefix = instruction_of(model, inputs, workload.prompt_tokens)
    settle = workload.settling_frames()
    schedule = workload.schedule(settle + settings.rounds)
    batches = {1, most_running(schedule, workload.tokens_per_frame)}
    case = CaseRecord(settings, {mode.value: ModeRecord() for mode in settings.modes}, prefix, cameras,
                      Probes(model, cameras, batches))
    with _lanes(model, settings, schedule, instruction, inputs, progress) as lanes:
        progress(f'{settle} frames until as many texts end as begin')
        for number, lengths in enumerate(schedule[:settle], 1):
            for mode, lane, bare in lanes:
                if mode is Mode.CONTINUOUS_BATCHING or number > settle - WARM_FRAMES:
                    _run(case, lane, bare, inputs, number, lengths, counts=False)
        process = psutil.Process()
        for number, lengths in enumerate(schedule[settle:], settle + 1):
            progress(f'round {number - settle} of {settings.rounds}')
            first = number % len(lanes)
            for _, lane, bare in lanes[first:] + lanes[:first]:
                _run(case, lane, bare, inputs, number, lengths, counts=True)
            if number - settle <= DETAILED:
                case.probes.run()
            case.memory.append(process.memory_info().rss)
        for mode, lane, _ in lanes:
            events = lane.drain()
            case.modes[lane.name].take(events, counts=False)
            _finish(case.modes[lane.name], lane)
            begun = schedule if mode is Mode.CONTINUOUS_BATCHING else schedule[max(0, settle - WARM_FRAMES):]
            check_tokens(lane.name, case.modes[lane.name], begun, workload.arrivals is Arrivals.UNIFORM)
    check_same_actions(case.modes)
    return case


def check_tokens(name: str, record: ModeRecord, schedule: Sequence[Sequence[int]], uniform: bool) -> None:
    """
    Check that all texts came out, with all their tokens; if one comes with every frame, as many tokens in every frame.

    :raises BenchFailed: some are missing.
    """
    wanted = sum(map(sum, schedule))
    if record.all_tokens != wanted:
        raise BenchFailed(f'{name}: {record.all_tokens} tokens of finished texts came out instead of {wanted}')
    for frame in record.frames if uniform else ():
        if frame.tokens != schedule[0][0]:
            raise BenchFailed(f'{name}: frame {frame.number} gave {frame.tokens} tokens instead of {schedule[0][0]}: '
                              'the work of the modes is not the same')


def check_same_actions(modes: dict[str, ModeRecord], tolerance: float = 0.02) -> None:
    """
    Check that all modes gave the same actions for the same frames.

    :param tolerance: of the largest number of an action; they come from the same calls, in another order.
    :raises BenchFailed: they did not.
    """
    (first, base), *others = modes.items()
    for name, record in others:
        for number in base.actions.keys() & record.actions.keys():
            one, other = base.actions[number], record.actions[number]
            if not abs(one - other).max() <= tolerance * max(1.0, abs(one).max()):
                raise BenchFailed(f'the actions of frame {number} differ between {first} and {name} by '
                                  f'{abs(one - other).max():.3g}')


@contextmanager
def _lanes(model: VLAModel, settings: BenchSettings, schedule: Sequence[Sequence[int]], instruction: str,
           inputs: Inputs, progress: Callable[[str], None]) -> Iterator[list[tuple[Mode, Lane, BareLane | None]]]:
    measured, energy = MeasuredModel(model), EnergyMeter(model.spec.device)
    lanes: list[tuple[Mode, Lane, BareLane | None]] = []
    try:
        for mode in settings.modes:
            progress(f'warming up {mode.value}')
            config = engine_config(model, settings, schedule, mode)
            lane = Lane(mode.value, measured, config, instruction, inputs.observation(1), settings.warm_up,
                        energy)
            lanes.append((mode, lane, BareLane(model, config, instruction) if settings.bare else None))
        yield lanes
    finally:
        for _, lane, bare in lanes:
            lane.stop()
            if bare is not None:
                bare.stop()


def engine_config(model: VLAModel, settings: BenchSettings, schedule: Sequence[Sequence[int]], mode: Mode,
                  ) -> EngineConfig:
    """Return the engine's settings of a mode; no text ever waits for a slot."""
    workload = settings.workload
    batching = mode is Mode.CONTINUOUS_BATCHING
    slots = most_running(schedule, workload.tokens_per_frame) if batching else max(1, *map(len, schedule))
    longest = max(max(lengths, default=1) for lengths in schedule)
    room = max(BRANCH_ROOM, len(model.branch_prompt('speech', '')) + 1)
    scheduler = SchedulerConfig(mode, workload.tokens_per_frame if batching else 0)
    return EngineConfig(scheduler, slots, longest + room, **settings.engine_options)


def _run(case: CaseRecord, lane: Lane, bare: BareLane | None, inputs: Inputs, number: int, lengths: Sequence[int],
         counts: bool) -> None:
    mode = case.modes[lane.name]

    def engine_frame() -> None:
        record, events = lane.run_frame(inputs.observation(number), lengths)
        check_frame(lane.name, record, events)
        mode.take(events, counts)
        if counts:
            mode.frames.append(record if len(mode.frames) < DETAILED else replace(record, calls=[]))

    def bare_frame() -> None:
        record = bare.run_frame(inputs.observation(number), lengths)
        if counts:
            mode.bare.append(record if len(mode.bare) < DETAILED else replace(record, calls=[]))

    if bare is None:
        engine_frame()
        return
    for work in (engine_frame, bare_frame) if number % 2 else (bare_frame, engine_frame):
        work()
    if counts and mode.bare[-1].tokens != mode.frames[-1].tokens:
        raise BenchFailed(f'{lane.name}: frame {number} is {mode.bare[-1].tokens} tokens without the engine and '
                          f'{mode.frames[-1].tokens} with it')


def _finish(record: ModeRecord, lane: Lane) -> None:
    lane.engine.check_integrity()
    cache = lane.engine.cache
    record.kv_peak, record.kv_allocated = cache.peak_bytes, cache.spec.total_bytes()
    record.slots = cache.spec.branches
    if record.kv_peak > record.kv_allocated:
        raise BenchFailed(f'{lane.name}: {record.kv_peak / MIB:.1f} MiB of KV in use, {record.kv_allocated / MIB:.1f} '
                          'MiB in the pools')
