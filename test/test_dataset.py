"""Training data: what is written is read, interrupted runs go on, the same seed gives the same data."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from oxygen_ros.cli import main
from oxygen_ros.errors import ConfigError
from oxygen_ros.simulation import generate, oracle
from oxygen_ros.simulation import robot_model as robot
from oxygen_ros.simulation.dataset import Dataset, DatasetInfo, Frame, Note, Question, Task, shard_path, write_shard
from oxygen_ros.simulation.objects import TableObject
from oxygen_ros.simulation.scene import sample_scene

RED_CUBE = TableObject('red', 'cube', (0.45, 0.2, 0.37), 0.03, 0.1, 120)


def made_frame(random: np.random.Generator) -> Frame:
    """Return a frame of noise with one task more or less."""
    tasks = tuple(Task('reach', f'point at {number}', 'i point', bool(number), number, random.random(14, np.float32),
                       random.random((10, 14), np.float32)) for number in range(int(random.integers(1, 4))))
    return Frame(images=random.integers(0, 255, (3, 112, 112, 3), np.uint8), joints=random.random(14, np.float32),
                 tasks=tasks, questions=(Question('where', 'where is it', 'far left', True),), note=Note('it', False),
                 patch_class=random.integers(0, 19, (8, 8), np.uint8),
                 patch_offset=random.random((8, 8, 2), np.float32), objects=(RED_CUBE.to_dict(),))


class MadeFrames:
    """Stands in for generate.FrameMaker: no simulator."""

    made = 0

    def place(self, random: np.random.Generator) -> float:
        return float(random.random())

    def frame(self, placement: float, random: np.random.Generator) -> Frame:
        MadeFrames.made += 1
        frame = made_frame(random)
        return replace(frame, joints=np.full(14, placement, np.float32))


@pytest.fixture
def made_frames(monkeypatch):
    monkeypatch.setattr(generate, 'FrameMaker', MadeFrames)
    MadeFrames.made = 0
    return MadeFrames


def same(first: Frame, second: Frame) -> bool:
    arrays = all(np.array_equal(getattr(first, name), getattr(second, name))
                 for name in ('images', 'joints', 'patch_class', 'patch_offset'))
    tasks = len(first.tasks) == len(second.tasks) and all(
        replace(one, goal=None, chunk=None) == replace(other, goal=None, chunk=None)
        and np.array_equal(one.goal, other.goal) and np.array_equal(one.chunk, other.chunk)
        for one, other in zip(first.tasks, second.tasks))
    return arrays and tasks and (first.questions, first.note) == (second.questions, second.note)


def test_frames_are_read_as_they_were_written(tmp_path):
    random = np.random.default_rng(0)
    frames = [made_frame(random) for _ in range(5)]
    info = generate.dataset_info(5, 0, 3)
    info.write(tmp_path)
    write_shard(tmp_path, 0, frames[:3])
    dataset = Dataset(tmp_path)
    assert len(dataset) == 3
    write_shard(tmp_path, 1, frames[3:])
    assert dataset.refresh() == 5
    assert all(same(one, other) for one, other in zip(dataset, frames))
    assert same(dataset[4], frames[4]) and dataset[4].images.dtype == np.uint8
    assert TableObject.from_dict(dataset[0].objects[0]) == RED_CUBE
    with pytest.raises(IndexError):
        dataset[5]


def test_run_that_was_interrupted_goes_on_and_ends_the_same(tmp_path, made_frames):
    info = generate.dataset_info(22, 7, 8)
    generate.generate(info, tmp_path / 'whole')
    assert made_frames.made == 22
    shutil.copytree(tmp_path / 'whole', tmp_path / 'part')
    shutil.rmtree(shard_path(tmp_path / 'part', 1))
    (tmp_path / 'part' / 'shard_00001.partial').mkdir()  # where it was ended
    seen = []
    generate.generate(info, tmp_path / 'part', lambda *progress: seen.append(progress[:2]))
    assert made_frames.made == 22 + 8
    assert seen[0] == (15, 1) and seen[-1] == (22, 8)
    whole, part = Dataset(tmp_path / 'whole'), Dataset(tmp_path / 'part')
    assert len(whole) == len(part) == 22
    assert all(same(one, other) for one, other in zip(whole, part))


def test_longer_run_keeps_what_is_there_and_other_seeds_are_refused(tmp_path, made_frames):
    generate.generate(generate.dataset_info(8, 1, 4), tmp_path)
    generate.generate(generate.dataset_info(16, 1, 4), tmp_path)
    assert made_frames.made == 16 and len(Dataset(tmp_path)) == 16
    with pytest.raises(ConfigError, match='other values of seed'):
        generate.generate(generate.dataset_info(16, 2, 4), tmp_path)


def test_each_seed_and_shard_has_placements_of_its_own(tmp_path, made_frames):
    for seed in (1, 2):
        generate.generate(generate.dataset_info(16, seed, 8), tmp_path / str(seed))
    placements = [float(frame.joints[0]) for seed in (1, 2) for frame in Dataset(tmp_path / str(seed))]
    assert len(set(placements)) == len(placements) / generate.FRAMES_PER_PLACEMENT


def test_command_line_says_how_far_it_is(tmp_path, made_frames, capsys):
    assert main(['dataset', '--frames', '6', '--output', str(tmp_path / 'data'), '--frames-per-shard', '4']) == 0
    out, err = capsys.readouterr()
    assert '6 frames in 2 shards' in out and '6 of 6 frames' in err and 'per second' in err
    assert main(['dataset', '--frames', '0', '--output', str(tmp_path / 'data')]) == 2
    assert '--frames must be at least 1' in capsys.readouterr().err


def test_what_is_no_dataset_is_refused(tmp_path):
    with pytest.raises(ConfigError, match='oxygen_ros dataset'):
        Dataset(tmp_path)
    info = generate.dataset_info(4, 0)
    info.write(tmp_path)
    values = json.loads((tmp_path / 'dataset.json').read_text())
    (tmp_path / 'dataset.json').write_text(json.dumps(values | {'version': 99}))
    with pytest.raises(ConfigError, match='version 99'):
        Dataset(tmp_path)


def test_patches_name_the_object_in_them_and_point_to_its_centre():
    seen = np.zeros((112, 112), np.uint8)
    seen[14:28, 28:42] = 1  # fills the patch in row 1, column 2
    seen[14:28, 42:44] = 1  # and a little of the next
    seen[70:73, 70:73] = 2  # too little
    objects = (RED_CUBE, replace(RED_CUBE, colour='cyan', shape='cylinder'))
    classes, offsets = generate.patch_targets(seen, objects)
    assert (np.argwhere(classes).tolist(), classes[1, 2]) == ([[1, 2], [1, 3]], 1)
    assert offsets[1, 2] == pytest.approx([1 / 14, 0]) and offsets[1, 3] == pytest.approx([-13 / 14, 0])
    assert not offsets[classes == 0].any()


def read_whole(folder: Path) -> list[Frame]:
    return list(Dataset(folder))


def test_simulator_makes_the_same_true_frames_again(tmp_path, renders):
    info = generate.dataset_info(10, 11, 8)
    generate.generate(info, tmp_path / 'one')
    generate.generate(replace(info, frames=8), tmp_path / 'two')
    frames = read_whole(tmp_path / 'one')
    assert all(same(one, other) for one, other in zip(frames, read_whole(tmp_path / 'two')))
    model_oracle = oracle.Oracle(robot.build_model())
    for frame in frames:
        assert frame.images.shape == (3, 112, 112, 3) and np.ptp(frame.images[0]) > 50
        objects = [TableObject.from_dict(item) for item in frame.objects]
        for task in frame.tasks:
            assert task.chunk == pytest.approx(model_oracle.chunk(frame.joints, task.goal), abs=1e-5)
            if task.kind == 'reach':
                item = objects[task.object]
                tip = model_oracle.fingertip(task.goal, item.arm)
                assert item.name in task.instruction and np.linalg.norm(tip - item.point_above) < 1e-3
            else:
                assert task.goal == pytest.approx(model_oracle.rest, abs=1e-6)
        shown = {1 + list(info.colours).index(item.colour) * 3 + info.shapes.index(item.shape) for item in objects}
        assert set(frame.patch_class[frame.patch_class > 0].tolist()) <= shown


def test_rest_pose_hides_nothing(renders):
    from oxygen_ros.simulation.simulation import Simulation
    simulation = Simulation()
    for seed in range(20):
        simulation.reset(seed)
        assert all(item.seen for item in simulation.truth().objects)
    assert simulation.view(64, 48).shape == (48, 64, 3)
    assert {name: image.shape for name, image in simulation.observe().images.items()} == dict.fromkeys(
        ('head', 'left_wrist', 'right_wrist'), (112, 112, 3))


def test_info_counts_shards_and_classes():
    info = generate.dataset_info(10, 0, 4)
    assert isinstance(info, DatasetInfo) and (info.shards, info.grid, info.classes) == (3, 8, 19)
    assert [info.frames_in(shard) for shard in range(3)] == [4, 4, 2]
    assert len(sample_scene(np.random.default_rng(0)).objects) <= robot.MAX_OBJECTS
