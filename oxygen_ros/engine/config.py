"""Settings of the engine."""

from __future__ import annotations

from dataclasses import dataclass

from oxygen_ros.engine.compiling import Compile
from oxygen_ros.engine.graphs import Graphs
from oxygen_ros.engine.kv_cache import CacheSpec
from oxygen_ros.engine.scheduler import SchedulerConfig
from oxygen_ros.errors import ConfigError
from oxygen_ros.models.interface import ModelSpec
from oxygen_ros.models.packing import Packing


@dataclass(frozen=True)
class EngineConfig:
    """
    :param max_branches: texts that decode at the same time. The last one is left for urgent requests (priority 0), so
        that a question need not wait until a text ends.
    :param branch_tokens: most tokens of one text with its prompt.
    :param max_frames: frames kept; 0 is max_branches + 2, which never has to end a text early.
    :param kv_budget_mib: hard limit of the KV cache in MiB.
    :param denoise_steps: flow-matching steps; 0 is the model's default. :param seed: of the action noise.
    :param max_frame_age: seconds (of the observation clock) beyond which no action is made from a frame.
    :param stream_interval: shortest time in seconds between two pieces of one text; the first comes at once.
    :param history: exchanges of a conversation that are kept. :param repetitions: a text ends when a piece of it comes
        so many times in a row; 0 never.
    :param failures_allowed: actions in a row of which the model may raise; what the next one raises comes out of
        `run_cycle`.
    :param packing: form in which a warm engine keeps the weights. :param compile: whether it runs compiled pieces.
    :param graphs: whether it replays CUDA graphs.
    :raises ConfigError: a value is out of range.
    """

    scheduler: SchedulerConfig = SchedulerConfig()
    max_branches: int = 8
    branch_tokens: int = 128
    max_frames: int = 0
    kv_budget_mib: float = 1024.0
    denoise_steps: int = 0
    seed: int = 0
    max_frame_age: float = 0.5
    stream_interval: float = 0.05
    history: int = 4
    repetitions: int = 0
    failures_allowed: int = 0
    packing: Packing = Packing.AUTO
    compile: Compile = Compile.OFF
    graphs: Graphs = Graphs.AUTO

    def __post_init__(self) -> None:
        for name, least in (('max_branches', 1), ('branch_tokens', 8), ('max_frames', 0), ('denoise_steps', 0),
                            ('max_frame_age', 0), ('stream_interval', 0), ('history', 0), ('repetitions', 0),
                            ('failures_allowed', 0)):
            if not getattr(self, name) >= least:
                raise ConfigError(f'engine: {name} is {getattr(self, name)}, must be at least {least}')

    def cache_spec(self, model: ModelSpec) -> CacheSpec:
        """Return the cache that an engine of a model needs."""
        return model.cache_spec(self.max_frames or self.max_branches + 2, self.max_branches, self.branch_tokens)
