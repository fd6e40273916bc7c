"""
Measures in real time: actions are due with a period, texts arrive as they like, and the engine decodes in the time
between, as it does on a robot.

Modes take turns in blocks of some seconds. Each block begins with an empty engine; its first periods do not count.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from oxygen_ros.bench.inputs import Inputs, instruction_of
from oxygen_ros.bench.measured_model import MeasuredModel
from oxygen_ros.bench.realtime_lane import SETTLE_PERIODS, CpuTimeLane, RealTimeLane, RealTimeRecord
from oxygen_ros.bench.settings import BenchSettings
from oxygen_ros.bench.workload import Arrivals
from oxygen_ros.engine.config import EngineConfig
from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.scheduler import Mode, SchedulerConfig
from oxygen_ros.errors import ConfigError
from oxygen_ros.models.interface import VLAModel

BRANCH_ROOM = 16     # tokens of a branch besides its text


@dataclass(frozen=True)
class RealTimeSettings:
    """
    :param period: seconds from action to action; 0 is twice what an action takes.
    :param seconds: measured per mode, at least; :param blocks: into which they are divided.
    :param rate: texts per second; 0 is one per period. With `permanent` there is always one that waits.
    :param branches: texts that run at the same time, at most.
    :param cpu_time: time is the CPU time of this process, see `CpuTimeLane`.
    """

    period: float = 0.0
    seconds: float = 20.0
    blocks: int = 4
    rate: float = 0.0
    permanent: bool = False
    branches: int = 8
    cpu_time: bool = False

    def __post_init__(self) -> None:
        for name, least in (('period', 0), ('seconds', 0.1), ('blocks', 1), ('rate', 0), ('branches', 1)):
            if not getattr(self, name) >= least:
                raise ConfigError(f'{name} is {getattr(self, name)}, must be at least {least}')


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
                                  **settings.engine_options)
            kind = CpuTimeLane if real_time.cpu_time else RealTimeLane
            lanes[mode.value] = kind(measured, config, inputs, instruction, settings.warm_up)
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
