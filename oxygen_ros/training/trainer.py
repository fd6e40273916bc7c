"""A training run: steps, saves, looks at held-out frames, and goes on where it was ended."""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import psutil
import torch

from oxygen_ros.errors import ConfigError
from oxygen_ros.models.initialise import initialise
from oxygen_ros.models.pi0_network import Pi0Network
from oxygen_ros.models.registry import LoadOptions, read_model_file
from oxygen_ros.models.tiny import TinyModel
from oxygen_ros.robot.layout import Layout
from oxygen_ros.robot.normalization import Statistics
from oxygen_ros.robot.robot_file import load_robot
from oxygen_ros.simulation.dataset import Dataset
from oxygen_ros.training.batches import TrainingBatch, choose_frames, generator, pack, shows_all_cameras
from oxygen_ros.training.config import TrainingConfig
from oxygen_ros.training.examples import Encoder
from oxygen_ros.training.losses import PatchHead, all_losses, patch_losses
from oxygen_ros.training.open_loop import score
from oxygen_ros.training.packed import PackedForward
from oxygen_ros.training.run_folder import RunFolder
from oxygen_ros.training.start import prepare
from oxygen_ros.training.state import TrainingState

logger = logging.getLogger(__name__)

LOG_EVERY = 50  # steps between two lines of the log
WAIT = 5.0  # seconds between two looks for frames that are still being made
EVALUATION_FRAMES = 64  # of one batch of an evaluation


class Trainer:
    """
    One run.

    :param folder: of the run; it goes on from the newest state there.
    :param held_out: frames that are evaluated and never trained on; None leaves evaluation out.
    :param compiled: fuse the layers with torch.compile. :param bfloat16: multiply in bfloat16; worth it where the CPU
        has AMX.
    :raises ConfigError: the folder is of another recipe, or data and model do not fit.
    """

    def __init__(self, config: TrainingConfig, dataset: Dataset, folder: RunFolder, held_out: Dataset | None = None,
                 compiled: bool = False, bfloat16: bool = False) -> None:
        self.config, self.dataset, self.folder, self.held_out = config, dataset, folder, held_out
        self.bfloat16 = bfloat16
        first = config.frames_at(0)
        if not 0 < first <= len(dataset):
            raise ConfigError(f'the run begins with {first} frames, {dataset.directory} has {len(dataset)}: wait for '
                              'more, or lower data_frames or first_frames')
        self.model_file = read_model_file(config.model)
        robot = load_robot(config.robot)
        model = TinyModel(self.model_file.content, LoadOptions(seed=config.seed))  # for its prompts and tokens
        if tuple(dataset.info.cameras) != model.spec.cameras:
            raise ConfigError(f'the dataset has cameras {list(dataset.info.cameras)}, model {config.model} '
                              f'{list(model.spec.cameras)}: they must be the same')
        layout = robot.layout(self.model_file.layout)
        self.statistics = folder.statistics(lambda: measure(dataset, first, layout))
        self.encoder = Encoder(model, with_statistics(layout, self.statistics), dataset.info.joints)
        # A network of its own: one that is loaded to run may keep its weights in another form.
        self.network = Pi0Network(model.network.config)
        initialise(self.network, config.seed)
        prepare(self.network, model.tokenizer, config.seed)
        self.forward = PackedForward(self.network, compiled)
        self.forward.longest_prefix = config.batch.prefix_tokens
        with torch.random.fork_rng():
            torch.manual_seed(config.seed)
            self.head = PatchHead(self.network.config.decoder.width, dataset.info.classes)
        self.state = TrainingState({'network': self.network, 'head': self.head}, 'network', config)
        newest, start = folder.newest(), folder.start
        if newest is not None:
            self.state.load(newest)
            logger.info('going on from step %d', self.state.step)
        elif start is not None:
            self.state.start_with(start.newest())

    def run(self, until: Callable[[], bool] = lambda: False, max_rss_mib: float = math.inf) -> bool:
        """
        Train to the end, saving on the way and at the end.

        :param until: asked after each step; ends the run early.
        :param max_rss_mib: a process that grows beyond is to be ended and started again from its last state.
        :returns: whether the last step was taken.
        """
        config, state = self.config, self.state
        started, count, sums, rss = time.monotonic(), 0, Counter(), 0.0
        with ThreadPoolExecutor(1) as pool:
            for batch in self._batches(pool):
                sums.update(self.step(batch))
                count += 1
                if state.step % LOG_EVERY == 0:
                    seconds, started = time.monotonic() - started, time.monotonic()
                    memory = psutil.Process().memory_info()
                    rss = (memory.rss - memory.shared) / 2**20  # without the pages of the dataset
                    self.folder.log({'step': state.step, 'seconds_per_step': seconds / count, 'rss_mib': round(rss),
                                     'cpu_seconds': time.process_time(), **{k: v / count for k, v in sums.items()}})
                    count, sums = 0, Counter()
                stop = until() or rss > max_rss_mib
                last = state.step == config.last_step
                if (state.step % config.evaluate_every == 0 and state.step > config.vision_steps) or last:
                    self.folder.log({'step': state.step, 'held_out': self.evaluate()})
                    self.folder.draw()
                if state.step % config.save_every == 0 or stop or last:
                    self.folder.save(state)
                if stop:
                    return last
        return True

    def step(self, batch: TrainingBatch) -> dict[str, float]:
        """Take one step."""
        alone = self.state.step < self.config.vision_steps
        with torch.autocast('cpu', torch.bfloat16, enabled=self.bfloat16):
            if alone:
                loss, parts = patch_losses(self.forward, self.head, batch)
            else:
                loss, parts = all_losses(self.forward, self.head, batch, self.config.loss_at(self.state.step))
        rate = learning_rate(self.config, self.state.step)
        norm = self.state.update(loss, rate)
        return {**{name: float(value) for name, value in parts.items()}, 'gradient': norm, 'rate': rate}

    def batch(self, step: int) -> TrainingBatch:
        """Return the batch of a step: the same whenever it is asked for."""
        config = self.config
        settings = config.batch_at(step)
        all_cameras = shows_all_cameras(settings, config.seed, step)
        if step < config.vision_steps:
            settings, all_cameras = replace(settings, frames=config.vision_frames), False
        indices = choose_frames(self._wait_for_frames(step), settings, config.seed, step)
        random = generator(config.seed, step)
        examples = [self.encoder.example(self.dataset, int(index), random) for index in indices]
        return pack(examples, settings, random, all_cameras)

    def _wait_for_frames(self, step: int) -> int:
        """Return how many frames a step draws from, when they are there."""
        wanted = self.config.frames_at(step)
        if len(self.dataset) < wanted and self.dataset.refresh() < wanted:
            logger.warning('step %d waits for frame %d, %s has %d', step, wanted, self.dataset.directory,
                           len(self.dataset))
            while self.dataset.refresh() < wanted:
                time.sleep(WAIT)
        return wanted

    def evaluate(self) -> dict[str, float]:
        """Return figures of the averaged weights on held-out frames: of the first camera alone, and of all cameras."""
        if self.held_out is None:
            return {}
        total = min(self.config.evaluation_frames, len(self.held_out))
        size = min(EVALUATION_FRAMES, total)
        # More room per row than in training: every text of a frame is asked.
        settings = replace(self.config.batch, frames=size, row_tokens=2 * self.config.batch.row_tokens, samples=1,
                           lost_camera=0.0)
        current = {key: parameter.detach().clone() for key, parameter in self.network.named_parameters()}
        self._set(self.state.average)
        forward = PackedForward(self.network)
        forward.longest_prefix = self.config.batch.prefix_tokens
        figures = {}
        try:
            for name, all_cameras in (('first', False), ('all', True)):
                figures[name] = score(forward, self.head, (pack(
                    [self.encoder.example(self.held_out, i) for i in range(start, start + size)], settings,
                    generator(0, start), all_cameras, flow_time=1.0) for start in range(0, total - size + 1, size)))
        finally:
            self._set(current)
        return {f'{name}/{key}': value for name, part in figures.items() for key, value in part.items()}

    @torch.no_grad()
    def _set(self, weights: dict[str, torch.Tensor]) -> None:
        for key, parameter in self.network.named_parameters():
            parameter.copy_(weights[key])

    def _batches(self, pool: ThreadPoolExecutor) -> Iterator[TrainingBatch]:
        """Give out the batches of all steps that are left; the next one is being made meanwhile."""
        coming: Future = pool.submit(self.batch, self.state.step)
        for step in range(self.state.step, self.config.last_step):
            batch = coming.result()
            if step + 1 < self.config.last_step:
                coming = pool.submit(self.batch, step + 1)
            yield batch


def learning_rate(config: TrainingConfig, step: int) -> float:
    """Return the rate of a step: a rise, then half a cosine, for the vision tower alone and then for everything."""
    left = 1.0
    if step < config.vision_steps:
        peak, steps = config.vision_rate, config.vision_steps
    else:
        peak, steps, step = config.learning_rate, config.cosine_steps or config.steps, step - config.vision_steps
        if config.cool_down:
            left = min(1.0, (config.steps - step) / config.cool_down)
    rise = min(1.0, (step + 1) / config.warm_up)
    fall = 0.5 * (1 + math.cos(math.pi * step / max(steps, 1)))
    return peak * rise * (config.last_rate + (1 - config.last_rate) * fall * left)


def measure(dataset: Dataset, frames: int, layout: Layout) -> dict[str, dict[str, list[float]]]:
    """Return statistics of states and actions over some 5,000 of the first `frames` frames, as in `norm_stats.json`."""
    bare = replace(layout, state_statistics=None, action_statistics=None)
    names = dataset.info.joints
    columns = [names.index(name) for name in layout.actions]
    states, actions = [], []
    for index in range(0, frames, max(1, frames // 5000)):
        shard, local = dataset.locate(index)
        positions = np.asarray(shard.joints[local])
        states.append(bare.encode_state(names, positions))
        for chunk in shard.task_chunk[shard.task_start[local]:shard.task_start[local + 1]]:
            actions.append(bare.encode_actions(chunk[:, columns], names, positions))
    return {'state': _statistics(np.stack(states)), 'actions': _statistics(np.concatenate(actions))}


def _statistics(values: np.ndarray) -> dict[str, list[float]]:
    low, high = np.quantile(values, (0.01, 0.99), axis=0)
    return {'q01': low.round(6).tolist(), 'q99': high.round(6).tolist(), 'mean': values.mean(0).round(6).tolist(),
            'std': values.std(0).round(6).tolist()}


def with_statistics(layout: Layout, statistics: dict) -> Layout:
    """Return the layout with measured statistics (quantiles, as `CheckpointStatistics` reads them)."""
    return replace(layout, state_statistics=Statistics.from_mapping(
        statistics['state'], 'quantile', len(layout.state), 'state'), action_statistics=Statistics.from_mapping(
        statistics['actions'], 'quantile', len(layout.actions), 'actions'))
