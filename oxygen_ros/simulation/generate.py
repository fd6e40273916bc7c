"""`oxygen_ros dataset`: makes training frames with the oracle. Resumable, and reproducible from its seed."""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from oxygen_ros.errors import ConfigError
from oxygen_ros.simulation import language, oracle
from oxygen_ros.simulation import robot_model as robot
from oxygen_ros.simulation.dataset import DatasetInfo, Frame, Task, shard_path, write_shard
from oxygen_ros.simulation.objects import COLOURS, SHAPES, TableObject
from oxygen_ros.simulation.renderer import Renderer, choose_backend
from oxygen_ros.simulation.scene import Scene, apply_scene, sample_look, sample_scene

FRAMES_PER_SHARD = 2000
FRAMES_PER_PLACEMENT = 4  # frames, each with another look and posture, of objects at the same places
PATCH_SIZE = 14  # pixels
PATCH_PIXELS = 10  # an object that covers less of a patch does not give it its class

OWN_TASK = {'reach': 0.80, 'rest': 0.12, 'absent': 0.08}  # what a joint state is made for
NOISE = (0.0, 0.01, 0.04, 0.12)  # rad: how far beside the way, drawn with
NOISE_WEIGHTS = (0.25, 0.25, 0.30, 0.20)
CLEARANCE = 0.02  # m: fingertips stay so far above the table
BLIND_REACH = 0.08  # m: nearer to a hidden object, the wrist camera sees it


@dataclass(frozen=True)
class Placement:
    """Objects and where the oracle goes for each: float64 [objects, joints] rad."""

    scene: Scene
    goals: np.ndarray


class FrameMaker:
    """Makes frames. Holds the model and a renderer: one per process."""

    def __init__(self) -> None:
        choose_backend()
        self._model = robot.build_model()
        self._renderer = Renderer(self._model)
        import mujoco
        self._mujoco = mujoco
        self._data = mujoco.MjData(self._model)
        self._oracle = oracle.Oracle(self._model)
        self._qpos = np.array([self._model.joint(name).qposadr[0] for name in robot.JOINTS])
        limits = np.array([self._model.joint(name).range for name in robot.JOINTS])
        self._lower, self._upper = limits.T

    def place(self, random: np.random.Generator) -> Placement:
        """Draw objects and find the goals."""
        scene = sample_scene(random)
        return Placement(scene, np.array([self._oracle.goal(item.arm, item.point_above) for item in scene.objects]))

    def frame(self, placement: Placement, random: np.random.Generator) -> Frame:
        """Draw a look and a posture, and say everything that is true of it."""
        scene = Scene(placement.scene.objects, placement.scene.clutter, sample_look(random, placement.scene.objects))
        own = self._own_task(random, len(scene.objects))
        joints = self._posture(random, placement.goals, own)
        apply_scene(self._model, scene)
        self._data.qpos[self._qpos] = joints
        self._mujoco.mj_kinematics(self._model, self._data)
        self._mujoco.mj_camlight(self._model, self._data)
        images = np.stack([self._renderer.image(self._data, camera, robot.IMAGE_SIZE) for camera in robot.CAMERAS])
        seen = self._renderer.segmentation(self._data, 'head', robot.IMAGE_SIZE)
        pixels = np.bincount(seen.ravel(), minlength=robot.MAX_OBJECTS + 1)[1:]
        objects = tuple(item.with_pixels(count) for item, count in zip(scene.objects, pixels))
        classes, offsets = patch_targets(seen, objects)
        return Frame(images=images, joints=joints.astype(np.float32),
                     tasks=self._tasks(random, placement, objects, joints, own),
                     questions=language.draw_questions(random, objects), note=language.note(objects),
                     patch_class=classes, patch_offset=offsets, objects=tuple(item.to_dict() for item in objects))

    @staticmethod
    def _own_task(random: np.random.Generator, objects: int) -> int:
        """Draw what the posture is made for: the number of an object, -1 to rest, -2 for an object that is absent."""
        kind = random.choice(list(OWN_TASK), p=list(OWN_TASK.values()))
        return int(random.integers(objects)) if kind == 'reach' else -1 if kind == 'rest' else -2

    def _posture(self, random: np.random.Generator, goals: np.ndarray, own: int) -> np.ndarray:
        """Draw a posture on the way to the goal of a task, from rest or another goal or anywhere, or beside it."""
        rest = self._oracle.rest
        goal = goals[own] if own >= 0 else rest
        for _ in range(100):
            draw = random.random()
            if draw < 0.4:
                start = rest if own >= 0 else goals[random.integers(len(goals))]
            elif draw < 0.75:
                start = goals[random.integers(len(goals))]
            else:  # both arms somewhere
                share = random.random(2).repeat(7)
                start = share * goals[random.integers(len(goals))] + (1 - share) * rest + random.normal(0, 0.25, 14)
            draw = random.random()
            progress = 0.0 if draw < 0.1 else random.random() if draw < 0.5 else 1 - 0.3 * random.random() ** 2
            joints = start + progress * (goal - start)
            joints = joints + random.normal(0, 1, 14) * random.choice(NOISE, p=NOISE_WEIGHTS)
            joints = np.clip(joints, self._lower, self._upper)
            if all(self._oracle.fingertip(joints, arm)[2] > robot.TABLE_HEIGHT + CLEARANCE for arm in robot.ARMS):
                return joints
        return goal

    def _tasks(self, random: np.random.Generator, placement: Placement, objects: tuple[TableObject, ...],
               joints: np.ndarray, own: int) -> tuple[Task, ...]:
        """Return what the robot may be told, the own task first."""
        tasks: dict[int, Task] = {}

        def add(key: int, kind: str, instruction: str, said: tuple[str, bool], goal: np.ndarray) -> None:
            tasks[key] = Task(kind, instruction, *said, max(key, -1), goal.astype(np.float32),
                              self._oracle.chunk(joints, goal).astype(np.float32))

        for number, item in enumerate(objects):
            tip = self._oracle.fingertip(joints, item.arm)
            distance = float(np.linalg.norm(tip - item.point_above))
            if item.hidden and distance > BLIND_REACH:
                continue  # nobody could know
            line, clear = language.reach_line(item.name, item.arm, distance)
            add(number, 'reach', str(random.choice(language.REACH_INSTRUCTIONS)).format(item.name),
                (line, clear and (item.seen or distance < language.ARRIVED)), placement.goals[number])
        rest = self._oracle.rest
        add(-1, 'rest', str(random.choice(language.REST_INSTRUCTIONS)),
            language.rest_line(float(np.abs(joints - rest).max())), rest)
        name = language.draw_absent(random, objects)
        add(-2, 'absent', str(random.choice(language.REACH_INSTRUCTIONS)).format(name),
            (language.absent_line(name), language.absent_clear(name, objects)), rest)
        first = [tasks.pop(own)] if own in tasks else []
        return (*first, *tasks.values())


def patch_targets(seen: np.ndarray, objects: tuple[TableObject, ...],
                  patch: int = PATCH_SIZE) -> tuple[np.ndarray, np.ndarray]:
    """
    Return class uint8 [rows, columns] and offset float32 [rows, columns, 2] of each patch; see `dataset.Frame`.

    :param seen: uint8 [size, size]: number of the object in each pixel, from 1; 0 for none.
    """
    rows = seen.shape[0] // patch
    classes, offsets = np.zeros((rows, rows), np.uint8), np.zeros((rows, rows, 2), np.float32)
    best = np.full((rows, rows), PATCH_PIXELS - 1)
    centres = (np.arange(rows) + 0.5) * patch - 0.5
    for number, item in enumerate(objects):
        mask = seen == number + 1
        if not mask.any():
            continue
        covered = mask.reshape(rows, patch, rows, patch).sum(axis=(1, 3))
        mine = covered > best
        best = np.where(mine, covered, best)
        y, x = (axis.mean() for axis in np.nonzero(mask))
        classes[mine] = 1 + list(COLOURS).index(item.colour) * len(SHAPES) + SHAPES.index(item.shape)
        towards = np.stack(np.broadcast_arrays((x - centres[None, :]) / patch, (y - centres[:, None]) / patch), axis=-1)
        offsets[mine] = towards[mine]
    return classes, offsets


def make_shard(maker: FrameMaker, info: DatasetInfo, shard: int, progress=lambda: None) -> list[Frame]:
    """Make the frames of one shard; they depend on the seed and its number alone. `progress` is called after each."""
    frames = []
    for index in range(info.frames_in(shard)):
        group, member = divmod(index, FRAMES_PER_PLACEMENT)
        if member == 0:
            placement = maker.place(np.random.default_rng([info.seed, shard, group]))
        frames.append(maker.frame(placement, np.random.default_rng([info.seed, shard, group, 1 + member])))
        progress()
    return frames


def dataset_info(frames: int, seed: int, frames_per_shard: int = FRAMES_PER_SHARD) -> DatasetInfo:
    """Return what describes a dataset of this simulator."""
    return DatasetInfo(seed=seed, frames=frames, frames_per_shard=frames_per_shard, cameras=tuple(robot.CAMERAS),
                       image_size=robot.IMAGE_SIZE, patch_size=PATCH_SIZE, joints=robot.JOINTS, horizon=oracle.HORIZON,
                       period=oracle.PERIOD, colours=tuple(COLOURS), shapes=SHAPES)


def generate(info: DatasetInfo, directory: Path, report=None) -> None:
    """
    Make the shards that are not there yet.

    :param report: called after each frame with (frames there, frames made in this run, seconds of this run).
    :raises ConfigError: the directory holds another dataset, or this machine cannot render.
    """
    info.write(directory)
    missing = [shard for shard in range(info.shards) if not shard_path(directory, shard).exists()]
    there = sum(info.frames_in(shard) for shard in range(info.shards)) - sum(map(info.frames_in, missing))
    maker = FrameMaker() if missing else None
    made, start = 0, time.monotonic()

    def count() -> None:
        nonlocal made
        made += 1
        if report:
            report(there + made, made, time.monotonic() - start)

    for shard in missing:
        write_shard(directory, shard, make_shard(maker, info, shard, count))


class Progress:
    """Says how far it is: in place on a terminal, else a line now and then."""

    def __init__(self, frames: int) -> None:
        self._frames = frames
        self._terminal = sys.stderr.isatty()
        self._next = 0.0

    def __call__(self, there: int, made: int, seconds: float) -> None:
        if seconds < self._next and there < self._frames:
            return
        self._next = seconds + (0.5 if self._terminal else 30)
        rate = made / max(seconds, 1e-9)
        left = (self._frames - there) / rate
        text = f'{there:,} of {self._frames:,} frames, {rate:.1f} per second, {left / 60:.1f} minutes left'
        end = '\n' if there == self._frames or not self._terminal else ''
        print(f'\r\033[K{text}' if self._terminal else text, end=end, file=sys.stderr, flush=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `oxygen_ros dataset`."""
    parser.add_argument('--frames', type=int, default=80_000, metavar='N', help='how many frames (80000)')
    parser.add_argument('--seed', type=int, default=0, metavar='S', help='other seeds give other scenes (0)')
    parser.add_argument('--output', type=Path, required=True, metavar='DIR',
                        help='folder for the shards; what is complete there is kept')
    parser.add_argument('--frames-per-shard', type=int, default=FRAMES_PER_SHARD, metavar='N',
                        help=f'frames of one shard ({FRAMES_PER_SHARD})')


def main(arguments: argparse.Namespace) -> int:
    """Make the dataset."""
    for name in ('frames', 'frames_per_shard'):
        if getattr(arguments, name) < 1:
            raise ConfigError(f'--{name.replace("_", "-")} must be at least 1, not {getattr(arguments, name)}')
    if arguments.seed < 0:
        raise ConfigError(f'--seed must not be negative, as {arguments.seed} is')
    info = dataset_info(arguments.frames, arguments.seed, arguments.frames_per_shard)
    generate(info, arguments.output, Progress(arguments.frames))
    print(f'{arguments.output}: {info.frames} frames in {info.shards} shards')
    return 0
