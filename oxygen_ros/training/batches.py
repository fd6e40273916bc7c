"""Batches of training, each a pure function of the data, the seed and the step: a run can go on anywhere, exactly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from oxygen_ros.errors import ConfigError
from oxygen_ros.training.examples import UNCLEAR, Example, Order, Text
from oxygen_ros.training.packed import NO_TARGET, PADDING, PREFIX, PackedBatch


@dataclass(frozen=True)
class BatchSettings:
    """
    :param frames: of a batch. :param rows: instructions per frame. :param row_tokens: of a row, padding included.
    :param prefix_tokens: most tokens of a prefix text. :param samples: noise samples of the chunk per row.
    :param all_cameras: share of the batches that show all cameras; the others show the first alone.
    :param lost_camera: share of the frames of the former that lack one camera other than the first.
    :param weights: of the texts of a task in the loss, per token.
    :param flow_alpha: flow times are drawn from Beta(alpha, 1): above 1, noisy chunks come more often.
    """

    frames: int = 32
    rows: int = 3
    row_tokens: int = 64
    prefix_tokens: int = 22
    samples: int = 3
    all_cameras: float = 0.25
    lost_camera: float = 0.25
    weights: Mapping[str, float] = field(default_factory=lambda: {'answer': 1.0, 'speech': 0.5, 'memory': 0.5})
    flow_alpha: float = 1.5

    def __post_init__(self) -> None:
        if min(self.frames, self.rows, self.samples) < 1 or not self.prefix_tokens < self.row_tokens:
            raise ValueError(f'frames {self.frames}, rows {self.rows} and samples {self.samples} must be at least 1, '
                             f'prefix_tokens {self.prefix_tokens} less than row_tokens {self.row_tokens}')


@dataclass(frozen=True)
class TrainingBatch:
    """
    A packed batch and what the vision tower alone learns from it.

    :param patch_class: int64 [B, rows, columns], of the first camera.
    :param patch_offset: float32 [B, rows, columns, 2], likewise.
    :param rows: what the rows of each frame are made of.
    """

    packed: PackedBatch
    patch_class: torch.Tensor
    patch_offset: torch.Tensor
    rows: list[list[Row]]


@dataclass
class Row:
    """A row that is being filled."""

    order: Order
    branches: list[Text]
    room: int

    def add(self, text: Text) -> bool:
        """Append a branch if there is room for it."""
        if len(text) > self.room:
            return False
        self.branches.append(text)
        self.room -= len(text)
        return True


def generator(seed: int, step: int) -> np.random.Generator:
    """Return the source of all randomness of a step."""
    return np.random.default_rng([seed, step])


def choose_frames(count: int, settings: BatchSettings, seed: int, step: int) -> np.ndarray:
    """Return the frames of a step, drawn from the first `count` frames of the dataset, no two alike, in order."""
    return np.sort(np.random.default_rng([seed, 1 << 32, step]).choice(count, settings.frames, replace=False))


def shows_all_cameras(settings: BatchSettings, seed: int, step: int) -> bool:
    """Whether the batch of a step shows all cameras."""
    return np.random.default_rng([seed, 2 << 32, step]).random() < settings.all_cameras


def make_rows(example: Example, settings: BatchSettings, random: np.random.Generator) -> list[Row]:
    """
    Choose what a frame teaches this time: instructions, the lines they call for, the note, and questions.

    The first order is always there, since the joint state was made for it.
    """
    others = random.permutation(np.arange(1, len(example.orders)))[:settings.rows - 1]
    chosen = [0, *others]
    chosen += list(random.integers(0, len(example.orders), settings.rows - len(chosen)))
    rows = [Row(example.orders[i], [], settings.row_tokens - len(example.orders[i].prefix)) for i in chosen]
    # The note stands behind any of the instructions: it must not depend on them.
    rows[random.integers(len(rows))].add(example.note)
    for row in rows:
        row.add(row.order.line)
    for question in example.questions:
        for row in sorted(rows, key=lambda row: -row.room):
            if row.add(question):
                break
    return rows


def pack(examples: Sequence[Example], settings: BatchSettings, random: np.random.Generator, all_cameras: bool,
         flow_time: float | None = None) -> TrainingBatch:
    """
    Return the batch of some examples. Its shapes depend on the settings and on `all_cameras` alone.

    :param flow_time: of all samples, instead of random ones.
    """
    shape = settings.frames, settings.rows, settings.row_tokens
    longest = max(len(order.prefix) for example in examples for order in example.orders)
    if longest > settings.prefix_tokens:
        raise ConfigError(f'a prefix text has {longest} tokens: raise prefix_tokens, which is {settings.prefix_tokens}')
    tokens, places = np.zeros(shape, dtype=np.int64), np.zeros(shape, dtype=np.int64)
    segments, targets = np.full(shape, PADDING, dtype=np.int64), np.full(shape, NO_TARGET, dtype=np.int64)
    weights = np.zeros(shape, dtype=np.float32)
    horizon, width = examples[0].orders[0].actions.shape
    actions = np.zeros((*shape[:2], horizon, width), dtype=np.float32)
    all_rows = [make_rows(example, settings, random) for example in examples]
    for b, rows in enumerate(all_rows):
        for k, row in enumerate(rows):
            actions[b, k] = row.order.actions
            start = 0
            for number, part in enumerate([row.order.prefix, *row.branches]):
                ids = part if number == PREFIX else (*part.prompt, *part.reply[:-1])
                span = np.s_[b, k, start:start + len(ids)]
                tokens[span], segments[span], places[span] = ids, number, np.arange(len(ids))
                if number != PREFIX:
                    said = np.s_[b, k, start + len(part.prompt) - 1:start + len(ids)]
                    targets[said] = part.reply
                    weights[said] = settings.weights[part.task] * (1.0 if part.clear else UNCLEAR)
                start += len(ids)
    cameras = examples[0].images.shape[0] if all_cameras else 1
    present = np.ones((settings.frames, cameras), dtype=bool)
    if cameras > 1:
        lost = random.integers(1, cameras, settings.frames)
        losing = random.random(settings.frames) < settings.lost_camera
        present[np.flatnonzero(losing), lost[losing]] = False
    noise = random.standard_normal((*shape[:2], settings.samples, horizon, width), dtype=np.float32)
    times = random.beta(settings.flow_alpha, 1.0, (*shape[:2], settings.samples)).astype(np.float32)
    if flow_time is not None:
        times[:] = flow_time
    packed = PackedBatch(*map(torch.from_numpy, (
        np.stack([example.images[:cameras] for example in examples]), present, tokens, segments, places, targets,
        weights, actions, np.ones(shape[:2], dtype=np.float32), noise, times)))
    return TrainingBatch(packed, torch.from_numpy(np.stack([e.patch_class for e in examples]).astype(np.int64)),
                         torch.from_numpy(np.stack([e.patch_offset for e in examples]).astype(np.float32)), all_rows)
