"""A small made-up dataset, robot and model, for tests of training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import yaml
from small_policy import SIZES, small_config

from oxygen_ros.simulation import language
from oxygen_ros.simulation.dataset import Dataset, DatasetInfo, Frame, Task, write_shard
from oxygen_ros.simulation.objects import COLOURS, SHAPES, TableObject
from oxygen_ros.training.batches import BatchSettings
from oxygen_ros.training.config import TrainingConfig

JOINTS = ('left_elbow', 'right_elbow', 'waist')
CAMERAS = ('head', 'left_wrist', 'right_wrist')
BATCH = BatchSettings(frames=4, rows=2, row_tokens=48, prefix_tokens=12, samples=2, all_cameras=0.5)


def make_dataset(folder: Path, frames: int = 12, seed: int = 0) -> Dataset:
    """Write frames whose pictures are noise, and whose texts are as the simulator gives them."""
    info = DatasetInfo(seed, frames, frames, CAMERAS, 28, 14, JOINTS, SIZES['horizon'], 0.1, tuple(COLOURS), SHAPES)
    info.write(folder)
    random = np.random.default_rng(seed)
    write_shard(folder, 0, [_frame(random) for _ in range(frames)])
    return Dataset(folder)


def _frame(random: np.random.Generator) -> Frame:
    objects = tuple(TableObject(str(colour), str(random.choice(SHAPES)), (0.3, y, 0.4), 0.03, pixels=100)
                    for colour, y in zip(random.permutation(list(COLOURS)), random.permutation([-0.2, 0.0, 0.2])))
    joints = random.uniform(-1, 1, len(JOINTS)).astype(np.float32)

    def task(kind: str, instruction: str, line: str) -> Task:
        goal = random.uniform(-1, 1, len(JOINTS)).astype(np.float32)
        chunk = joints + np.linspace(0, 1, SIZES['horizon'], dtype=np.float32)[:, None] * (goal - joints)
        return Task(kind, instruction, line, True, 0, goal, chunk)

    tasks = (*(task('reach', f'point at the {item.name}', language.reach_line(item.name, item.arm, 0.2)[0])
               for item in objects), task('rest', 'rest', 'i rest'))
    return Frame(random.integers(0, 256, (len(CAMERAS), 28, 28, 3), dtype=np.uint8), joints, tasks,
                 language.draw_questions(random, objects), language.note(objects),
                 random.integers(0, 3, (2, 2)).astype(np.uint8), random.normal(0, 1, (2, 2, 2)).astype(np.float32),
                 tuple(item.to_dict() for item in objects))


def write_files(folder: Path, **changes) -> TrainingConfig:
    """Write a model and a robot file, and return a recipe for them."""
    sizes = {name: {**SIZES[name], 'kv_heads': 1} for name in ('decoder', 'expert')}
    content = small_config(**sizes, cameras=list(CAMERAS), prefix_mask='causal_language', layout='joints',
                           action_dim=len(JOINTS), words=' '.join(language.vocabulary()))
    (folder / 'model.yaml').write_text(yaml.safe_dump(content))
    joint = {'lower': -2.0, 'upper': 2.0, 'velocity': 1.0, 'default': 0.0}
    (folder / 'robot.yaml').write_text(yaml.safe_dump({
        'name': 'made_up', 'joints': [{'name': name, **joint} for name in JOINTS],
        'cameras': {name: f'/{name}' for name in CAMERAS},
        'layouts': {'joints': {'state': 'all', 'actions': 'all', 'action_mode': 'delta',
                               'state_statistics': 'joint_limits', 'action_statistics': 'none'}}}))
    return TrainingConfig(**{'model': str(folder / 'model.yaml'), 'robot': str(folder / 'robot.yaml'), 'seed': 1,
                             'batch': BATCH, 'vision_steps': 2, 'vision_frames': 4, 'steps': 4, 'warm_up': 1,
                             'save_every': 100, 'evaluate_every': 100, 'evaluation_frames': 4, 'data_frames': 12,
                             **changes})
