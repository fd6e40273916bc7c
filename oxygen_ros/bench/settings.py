"""Settings of a measurement."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from oxygen_ros.bench.workload import Workload
from oxygen_ros.engine.compiling import Compile
from oxygen_ros.engine.config import EngineConfig
from oxygen_ros.engine.scheduler import Mode
from oxygen_ros.errors import ConfigError
from oxygen_ros.models.registry import DTYPES

MODES = tuple(Mode)
KV_BUDGET_MIB = 16384.0  # of the cache of each mode, if nothing else is said


@dataclass(frozen=True)
class BenchSettings:
    """
    What is measured, how often, and on what.

    :param model: name or path of a model file. :param checkpoint: folder of its weights, None for random ones.
    :param threads: of torch on the CPU, 0 leaves them. :param cameras: that give pictures, None for all.
    :param rounds: frames per mode that count. :param warm_up: rounds of the engine's own warm-up.
    :param bare: measure the model calls alone as well.
    :param engine: further fields of the engine's settings.
    :param seed: of random weights, arrivals, pictures and noise.
    """

    model: str = 'bench_m'
    checkpoint: Path | None = None
    dtype: str = 'float32'
    device: str = 'cpu'
    threads: int = 0
    cameras: int | None = None
    modes: tuple[Mode, ...] = MODES
    rounds: int = 9
    warm_up: int = 2
    bare: bool = True
    engine: Mapping[str, object] = field(default_factory=dict)
    seed: int = 0
    workload: Workload = field(default_factory=Workload)

    @property
    def engine_options(self) -> dict[str, object]:
        """Return what the settings of every mode's engine have in common."""
        return {'kv_budget_mib': KV_BUDGET_MIB, 'denoise_steps': self.workload.denoise_steps, 'seed': self.seed,
                'max_frame_age': 1e9, **self.engine}

    @property
    def compile(self) -> Compile:
        """Return what the engines compile."""
        return self.engine.get('compile', EngineConfig.compile)

    def __post_init__(self) -> None:
        for name, least in (('rounds', 1), ('warm_up', 1), ('threads', 0)):
            if getattr(self, name) < least:
                raise ConfigError(f'{name} is {getattr(self, name)}, must be at least {least}')
        if self.dtype not in DTYPES:
            raise ConfigError(f'dtype is {self.dtype!r}: choose one of {list(DTYPES)}')
        if not self.modes:
            raise ConfigError('no mode is given: choose some of ' + ', '.join(mode.value for mode in MODES))
