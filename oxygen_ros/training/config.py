"""The recipe of a training run, a YAML file in config/training."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from oxygen_ros.errors import ConfigError
from oxygen_ros.files import config_file
from oxygen_ros.training.batches import BatchSettings
from oxygen_ros.training.losses import LossWeights


@dataclass(frozen=True)
class TrainingConfig:
    """
    :param model, robot: names or paths of their files. :param seed: of weights, data order and noise.
    :param start_from: recipe whose finished run this one begins with: its weights, the patch head and the statistics
        of states and actions, but a new optimiser. Empty: random weights.
    :param data_frames: frames of the dataset that are used, the first ones; 0 takes what there is at the start.
    :param first_frames: of them, those of the first step; 0: all.
    :param frames_per_step: how many more are used step by step. So training can begin while the dataset is made; a
        step whose frames are not there waits for them.
    :param vision_steps: steps of the vision tower alone, with batches of `vision_frames`.
    :param steps: steps of everything, after those.
    :param learning_rate: peak; it rises over `warm_up` steps and falls along a cosine to `last_rate` of itself.
    :param cosine_steps: length of that cosine when it is to be longer than `steps`; 0 takes `steps`.
    :param cool_down: last steps, in which the rate moreover falls in a straight line. With a longer cosine, the length
        of a run can be chosen while it runs: all steps before the cool-down stay the same.
    :param late_from: of the steps of everything, the first one with `late_batch` and `late_loss` where they are given:
        what a run is to care for more towards its end.
    :param vision_rate: peak of the steps of the vision tower alone.
    :param ema: decay of the averaged weights, which are what is evaluated and exported.
    :param save_every, evaluate_every: steps. :param evaluation_frames: held-out frames of an evaluation on the way.
    """

    model: str = 'openarm'
    robot: str = 'openarm'
    seed: int = 0
    start_from: str = ''
    data_frames: int = 0
    first_frames: int = 0
    frames_per_step: float = 0.0
    batch: BatchSettings = field(default_factory=BatchSettings)
    loss: LossWeights = field(default_factory=LossWeights)
    late_from: int = 0
    late_batch: BatchSettings | None = None
    late_loss: LossWeights | None = None
    vision_steps: int = 1500
    vision_frames: int = 64
    vision_rate: float = 1e-3
    steps: int = 12000
    learning_rate: float = 1e-3
    warm_up: int = 200
    cosine_steps: int = 0
    cool_down: int = 0
    last_rate: float = 0.01
    weight_decay: float = 0.02
    clip: float = 1.0
    ema: float = 0.999
    save_every: int = 250
    evaluate_every: int = 500
    evaluation_frames: int = 256

    def __post_init__(self) -> None:
        for name in ('vision_steps', 'steps', 'cosine_steps', 'cool_down', 'data_frames', 'first_frames',
                     'frames_per_step', 'late_from'):
            if getattr(self, name) < 0:
                raise ValueError(f'{name} {getattr(self, name)} must not be negative')
        for name in ('vision_frames', 'warm_up', 'save_every', 'evaluate_every', 'evaluation_frames'):
            if getattr(self, name) < 1:
                raise ValueError(f'{name} {getattr(self, name)} must be at least 1')
        if self.late_batch is not None and self.late_batch.prefix_tokens != self.batch.prefix_tokens:
            raise ValueError(f'late_batch has prefix_tokens {self.late_batch.prefix_tokens}, batch '
                             f'{self.batch.prefix_tokens}: they must be the same')

    @property
    def last_step(self) -> int:
        """Step at which the run is complete."""
        return self.vision_steps + self.steps

    def batch_at(self, step: int) -> BatchSettings:
        """Return how the batch of a step is made."""
        return self.late_batch if self.late_batch is not None and self._late(step) else self.batch

    def loss_at(self, step: int) -> LossWeights:
        """Return the weights of the losses of a step."""
        return self.late_loss if self.late_loss is not None and self._late(step) else self.loss

    def _late(self, step: int) -> bool:
        return step >= self.vision_steps + self.late_from

    def frames_at(self, step: int) -> int:
        """Return how many frames a step draws from."""
        if not self.first_frames:
            return self.data_frames
        return min(self.data_frames, self.first_frames + int(self.frames_per_step * step))

    def to_mapping(self) -> dict:
        """Return plain data, for YAML and JSON."""
        return dataclasses.asdict(self)


def read_config(name_or_path: str) -> TrainingConfig:
    """
    Read `config/training/<name>.yaml` or a file.

    :raises ConfigError: there is none, or it has an unknown key or a wrong value.
    """
    path = config_file('training', name_or_path)
    return parse_config(_yaml(path), f'training file {path}')


def parse_config(content: object, where: str) -> TrainingConfig:
    """Return the recipe in plain data; raises ConfigError as `read_config` does."""
    if not isinstance(content, Mapping):
        raise ConfigError(f'{where}: must be a mapping')
    parts = {'batch': BatchSettings, 'loss': LossWeights, 'late_batch': BatchSettings, 'late_loss': LossWeights}
    try:
        return TrainingConfig(**{key: parts[key](**value) if key in parts and value is not None else value
                                 for key, value in content.items()})
    except (TypeError, ValueError) as error:
        raise ConfigError(f'{where}: {error}') from error


def _yaml(path: Path) -> object:
    try:
        return yaml.safe_load(path.read_text(encoding='utf-8'))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f'training file {path} cannot be read: {" ".join(str(error).split())}') from error
