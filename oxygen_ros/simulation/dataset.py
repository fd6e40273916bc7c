"""
Training data on disk: shards of NumPy arrays, and one line of JSON with the texts of each frame.

    DIRECTORY/dataset.json            what holds for all frames: `DatasetInfo`
    DIRECTORY/shard_00000/            appears under this name when it is complete, and never changes then
        images.npy        uint8   [frames, cameras, size, size, 3]  RGB, cameras in the order of `DatasetInfo.cameras`
        joints.npy        float32 [frames, joints]                  measured positions, rad
        patch_class.npy   uint8   [frames, rows, columns]           of the head camera; see `Frame`
        patch_offset.npy  float32 [frames, rows, columns, 2]
        task_start.npy    int64   [frames + 1]                      tasks of frame i: task_start[i]:task_start[i + 1]
        task_goal.npy     float32 [tasks, joints]
        task_chunk.npy    float32 [tasks, horizon, joints]
        texts.jsonl       one line per frame: {"tasks": [...], "questions": [...], "note": {...}, "objects": [...]}

A reader sees the shards that are complete; `refresh` takes in those that have come since.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from oxygen_ros.errors import ConfigError

VERSION = 1
INFO_FILE = 'dataset.json'


@dataclass(frozen=True)
class DatasetInfo:
    """
    What holds for all frames.

    :param seed: of the generator; the same seed and version give the same frames.
    :param frames: how many there are when it is complete.
    :param frames_per_shard: the last shard may have less.
    :param cameras: names, in the order of the second axis of the images.
    :param image_size: height and width, pixels.
    :param patch_size: pixels along a patch; image_size is a multiple of it.
    :param joints: names, in the order of every joint vector.
    :param horizon: rows of a chunk.
    :param period: seconds from row to row; row 0 is the position one period after the frame.
    :param colours: names; see `Frame.patch_class`.
    :param shapes: names.
    """

    seed: int
    frames: int
    frames_per_shard: int
    cameras: tuple[str, ...]
    image_size: int
    patch_size: int
    joints: tuple[str, ...]
    horizon: int
    period: float
    colours: tuple[str, ...]
    shapes: tuple[str, ...]
    version: int = VERSION

    @property
    def classes(self) -> int:
        """Number of patch classes, with that of no object."""
        return 1 + len(self.colours) * len(self.shapes)

    @property
    def grid(self) -> int:
        """Patches along a side of an image."""
        return self.image_size // self.patch_size

    @property
    def shards(self) -> int:
        """Number of shards when the dataset is complete."""
        return -(-self.frames // self.frames_per_shard)

    def frames_in(self, shard: int) -> int:
        """Frames of a shard."""
        return min(self.frames_per_shard, self.frames - shard * self.frames_per_shard)

    def write(self, directory: Path) -> None:
        """
        Write it, or check that the directory holds data of the same kind.

        :raises ConfigError: the directory holds a dataset that differs in more than its length.
        """
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / INFO_FILE
        if path.exists():
            there = asdict(DatasetInfo.read(directory))
            wrong = [name for name, value in asdict(self).items() if name != 'frames' and there[name] != value]
            if wrong:
                raise ConfigError(f'{directory} holds a dataset with other values of {", ".join(wrong)}: choose '
                                  'another directory, or the same values to go on with it')
        partial = path.with_suffix('.partial')
        partial.write_text(json.dumps(asdict(self), indent=2) + '\n')
        partial.replace(path)

    @staticmethod
    def read(directory: Path) -> DatasetInfo:
        """
        Read it.

        :raises ConfigError: there is no dataset, or one of another version.
        """
        try:
            values = json.loads((directory / INFO_FILE).read_text())
        except (OSError, json.JSONDecodeError) as error:
            raise ConfigError(f'{directory} is no dataset ({error}): make one with `oxygen_ros dataset`') from None
        if values.get('version') != VERSION:
            raise ConfigError(f'{directory} is a dataset of version {values.get("version")}, this is version '
                              f'{VERSION}: make it again with `oxygen_ros dataset`')
        return DatasetInfo(**{name: tuple(value) if isinstance(value, list) else value
                              for name, value in values.items()})


@dataclass(frozen=True)
class Task:
    """
    Something the robot may be told in this frame, and what it should then do and say.

    :param kind: 'reach', 'rest', or 'absent' (an object that is not there: it goes to rest and says so).
    :param instruction: what it is told.
    :param line: what it should say, true of this moment.
    :param line_clear: False where the line is a matter of opinion (half way between reaching and having arrived, an
        object half hidden): do not score it.
    :param object: index in `Frame.objects`, -1 for none.
    :param goal: float32 [joints], rad: where the oracle goes.
    :param chunk: float32 [horizon, joints], rad: absolute positions to command, one period apart.
    """

    kind: str
    instruction: str
    line: str
    line_clear: bool
    object: int
    goal: np.ndarray
    chunk: np.ndarray


@dataclass(frozen=True)
class Question:
    """
    :param kind: one of `language.QUESTION_KINDS`.
    :param clear: False where the answer is a matter of opinion (hidden objects): do not score it.
    """

    kind: str
    question: str
    answer: str
    clear: bool


@dataclass(frozen=True)
class Note:
    """
    :param text: the visible objects with their places.
    :param clear: False if an object is half hidden, so that it may be named or not.
    """

    text: str
    clear: bool


@dataclass(frozen=True)
class Frame:
    """
    One moment.

    :param images: uint8 [cameras, size, size, 3].
    :param joints: float32 [joints], rad.
    :param tasks: the first is the one that the joint state was made for (on, beside or off its path).
    :param patch_class: uint8 [rows, columns]: 0 no object, else 1 + colour index * shapes + shape index, of the object
        with the most pixels in the patch, if it covers enough of it.
    :param patch_offset: float32 [rows, columns, 2]: from the centre of the patch to the centre of that object's pixels
        in the whole image, right and down, in patches; 0 where there is no object.
    :param objects: what is on the table, as `objects.TableObject.to_dict` gives it, with `pixels`: how many pixels of
        it the head camera sees.
    """

    images: np.ndarray
    joints: np.ndarray
    tasks: tuple[Task, ...]
    questions: tuple[Question, ...]
    note: Note
    patch_class: np.ndarray
    patch_offset: np.ndarray
    objects: tuple[dict, ...]


class Shard:
    """Reads one complete shard. Arrays are memory-mapped, texts read when first asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.images = self._array('images')
        self.joints = self._array('joints')
        self.patch_class = self._array('patch_class')
        self.patch_offset = self._array('patch_offset')
        self.task_start = self._array('task_start')
        self.task_goal = self._array('task_goal')
        self.task_chunk = self._array('task_chunk')

    def _array(self, name: str) -> np.ndarray:
        return np.load(self.path / f'{name}.npy', mmap_mode='r')

    def __len__(self) -> int:
        return len(self.joints)

    @cached_property
    def texts(self) -> list[dict]:
        """Texts of each frame: keys tasks, questions, note, objects."""
        return [json.loads(line) for line in (self.path / 'texts.jsonl').read_text().splitlines()]

    def __getitem__(self, index: int) -> Frame:
        texts = self.texts[index]
        first, last = self.task_start[index], self.task_start[index + 1]
        tasks = tuple(Task(**words, goal=goal, chunk=chunk) for words, goal, chunk in zip(
            texts['tasks'], self.task_goal[first:last], self.task_chunk[first:last]))
        return Frame(images=self.images[index], joints=self.joints[index], tasks=tasks,
                     questions=tuple(Question(**question) for question in texts['questions']),
                     note=Note(**texts['note']), patch_class=self.patch_class[index],
                     patch_offset=self.patch_offset[index], objects=tuple(texts['objects']))


class Dataset:
    """
    Reads the shards that are complete.

    :raises ConfigError: the directory is no dataset.
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.info = DatasetInfo.read(self.directory)
        self.shards: list[Shard] = []
        self.refresh()

    def refresh(self) -> int:
        """Take in shards that were completed since, in order. Returns how many frames there are."""
        known = {shard.path for shard in self.shards}
        self.shards += [Shard(path) for path in shard_paths(self.directory) if path not in known]
        self.shards.sort(key=lambda shard: shard.path)
        self._ends = np.cumsum([len(shard) for shard in self.shards])
        return len(self)

    def __len__(self) -> int:
        return int(self._ends[-1]) if self.shards else 0

    def locate(self, index: int) -> tuple[Shard, int]:
        """Return the shard of a frame and its index there."""
        if not 0 <= index < len(self):
            raise IndexError(f'frame {index} of {len(self)}')
        shard = int(np.searchsorted(self._ends, index, side='right'))
        return self.shards[shard], index - int(self._ends[shard]) + len(self.shards[shard])

    def __getitem__(self, index: int) -> Frame:
        shard, local = self.locate(index)
        return shard[local]

    def __iter__(self) -> Iterator[Frame]:
        for shard in self.shards:
            for index in range(len(shard)):
                yield shard[index]


def shard_path(directory: Path, shard: int) -> Path:
    """Return the folder of a complete shard."""
    return directory / f'shard_{shard:05d}'


def shard_paths(directory: Path) -> list[Path]:
    """Return the folders of the complete shards, in order."""
    return sorted(path for path in directory.glob('shard_?????') if path.is_dir())


def write_shard(directory: Path, number: int, frames: Sequence[Frame]) -> None:
    """Write a shard; it appears when it is complete, also if this process is ended in between."""
    final = shard_path(directory, number)
    partial = final.with_name(final.name + '.partial')
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    tasks = [task for frame in frames for task in frame.tasks]
    arrays = {
        'images': np.stack([frame.images for frame in frames]),
        'joints': np.stack([frame.joints for frame in frames]).astype(np.float32),
        'patch_class': np.stack([frame.patch_class for frame in frames]).astype(np.uint8),
        'patch_offset': np.stack([frame.patch_offset for frame in frames]).astype(np.float32),
        'task_start': np.concatenate([[0], np.cumsum([len(frame.tasks) for frame in frames])]).astype(np.int64),
        'task_goal': np.stack([task.goal for task in tasks]).astype(np.float32),
        'task_chunk': np.stack([task.chunk for task in tasks]).astype(np.float32),
    }
    for name, array in arrays.items():
        np.save(partial / f'{name}.npy', array)
    with open(partial / 'texts.jsonl', 'w') as file:
        for frame in frames:
            file.write(json.dumps(_texts(frame)) + '\n')
    partial.rename(final)


def _texts(frame: Frame) -> dict:
    return {'tasks': [{'kind': task.kind, 'instruction': task.instruction, 'line': task.line,
                       'line_clear': task.line_clear, 'object': task.object} for task in frame.tasks],
            'questions': [asdict(question) for question in frame.questions], 'note': asdict(frame.note),
            'objects': list(frame.objects)}
