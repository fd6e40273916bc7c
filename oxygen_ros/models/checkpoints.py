"""
Loads weights from safetensors files, strictly, and from torch's own files only as far as these are plain tensors: a
checkpoint is data, not code.

Which tensors of a file make up which parameter of a network is data (`Source`), given by the family. The file is mapped
into memory, and every parameter is filled once, in its final dtype and on its final device: there are never two copies.
"""

from __future__ import annotations

import json
import logging
import pickle
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from oxygen_ros.errors import ConfigError

logger = logging.getLogger(__name__)

WEIGHTS = 'model.safetensors'
INDEX = 'model.safetensors.index.json'  # of a checkpoint in several files
TORCH_SUFFIX = '.pt'
LISTED = 5  # names per kind of mistake that an error lists
GIB = 1 << 30
MAPPED = GIB // 2  # bytes of the file that are mapped at a time

# Bytes done, bytes in all, seconds so far. Called after every parameter.
Progress = Callable[[int, int, float], None]
# Name of a network's parameter -> its dtype.
DtypeRule = Callable[[str], torch.dtype]


@dataclass(frozen=True)
class Source:
    """
    Where a parameter comes from.

    :param names: tensors of the file, joined along the first axis.
    :param rows: first sizes of these tensors; None if they share the parameter's rows equally.
    :param add: added to every number, in float32 (Gemma stores the scale of a norm minus 1).
    :param instead: tensors that can stand in, in this order, when the file lacks `names` (of one tensor).
    """

    names: tuple[str, ...]
    rows: tuple[int, ...] | None = None
    add: float = 0.0
    instead: tuple[str, ...] = ()


class LogProgress:
    """
    Says how far loading is, every few seconds and at the end; what is loaded in no time is not worth a word.

    :param what: for people, such as 'loading model.safetensors'. :param say: takes one line.
    """

    def __init__(self, what: str, say: Callable[[str], None] = logger.info, interval: float = 2.0) -> None:
        self._what, self._say, self._interval = what, say, interval
        self._next = interval

    def __call__(self, done: int, total: int, seconds: float) -> None:
        """Take in how far it is; see `Progress`."""
        if seconds < self._next and (done < total or self._next == self._interval):
            return
        self._next = seconds + self._interval
        self._say(f'{self._what}: {done / GIB:.2f} of {total / GIB:.2f} GiB ({100 * done / max(total, 1):.0f} %), '
                  f'{done / GIB / max(seconds, 1e-9):.2f} GiB/s')


def load_strict(network: nn.Module, path: Path, sources: Mapping[str, Source] | None = None, *,
                unused: Collection[str] = (), prefix: str = '', dtype: DtypeRule | None = None, device: str = 'cpu',
                progress: Progress | None = None) -> None:
    """
    Fill a network from safetensors files, or from one that torch.save wrote (.pt).

    :param network: may have been built on the meta device; its parameters are replaced.
    :param path: the file, or a directory that holds `model.safetensors`, or the index of several files and these.
    :param sources: parameter -> where it comes from; None: every parameter is a tensor of the same name.
    :param unused: tensors that may be in the file and are not read. :param prefix: in front of all names in the files.
    :param dtype: None keeps that of each parameter.
    :raises ConfigError: one message with every missing, unknown or wrongly shaped tensor.
    """
    files = weights_files(path)
    wanted = dict(network.named_parameters())
    if sources is None:
        sources = {name: Source((name,)) for name in wanted}
    start = time.monotonic()
    shapes, homes = {}, {}
    for number, part_file in enumerate(files):
        given = _shapes(_open(part_file), prefix)
        shapes |= given
        homes |= dict.fromkeys(given, number)
    parts = _match(path, {name: list(parameter.shape) for name, parameter in wanted.items()}, shapes, sources, unused)
    dtypes = {name: dtype(name) if dtype is not None else wanted[name].dtype for name in wanted}
    total = sum(wanted[name].numel() * dtypes[name].itemsize for name in wanted)
    done, home, file, seen = 0, 0, _open(files[0]), 0
    for name, names in parts.items():
        filled = torch.empty(wanted[name].shape, dtype=dtypes[name], device=device)
        row = 0
        for part in names:
            if homes[part] != home or seen > MAPPED:
                home = homes[part]
                file, seen = _open(files[home]), 0  # lets go of what is mapped so far
            tensor = file.get_tensor(prefix + part)
            seen += tensor.nbytes
            if sources[name].add:
                tensor = tensor.float() + sources[name].add
            filled[row:row + len(tensor)].copy_(tensor)
            row += len(tensor)
        _replace(network, name, filled)
        done += filled.nbytes
        if progress is not None:
            progress(done, total, time.monotonic() - start)


def tensor_names(path: Path) -> list[str]:
    """Return the names of all tensors of a checkpoint; see `load_strict` for `path` and errors."""
    return list(_open(weights_file(path)).keys())


def allocate(network: nn.Module, dtype: DtypeRule, device: str) -> None:
    """Give every parameter of a network built on the meta device memory of its own, not initialised."""
    for name, parameter in list(network.named_parameters()):
        _replace(network, name, torch.empty(parameter.shape, dtype=dtype(name), device=device))


def require_memory(name: str, network: nn.Module, rules: Mapping[str, DtypeRule], chosen: str, device: str,
                   budget_bytes: int | None = None) -> int:
    """
    Refuse a model that does not fit, before anything of it is loaded. Returns the bytes of its parameters.

    :param rules: name of a dtype -> dtype of each parameter. :param chosen: the one that is wanted.
    :param budget_bytes: what may be used; None is what the device has free.
    :raises ConfigError: says what would fit.
    """
    need = {option: sum(parameter.numel() * rule(key).itemsize for key, parameter in network.named_parameters())
            for option, rule in rules.items()}
    room, where = (_free_bytes(device), f'free on device {device}') if budget_bytes is None else (
        budget_bytes, 'in the memory budget')
    if need[chosen] > room:
        smaller = [f'{option} ({size / GIB:.2f} GiB)' for option, size in need.items() if size <= room]
        remedy = f'choose dtype {" or ".join(smaller)}' if smaller else (
            f'it takes at least {min(need.values()) / GIB:.2f} GiB: choose another device or a smaller model')
        raise ConfigError(f'the weights of model {name!r} need {need[chosen] / GIB:.2f} GiB in {chosen}, '
                          f'{room / GIB:.2f} GiB are {where}: {remedy}')
    return need[chosen]


def weights_file(path: Path) -> Path:
    """Return the file of a checkpoint given as file or directory, or raise ConfigError."""
    file = path / WEIGHTS if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(f'checkpoint {str(path)!r} has no {WEIGHTS}: give the directory that holds it')
    return file


def weights_files(path: Path) -> list[Path]:
    """
    Return the files of a checkpoint, which are one or, in a directory with an index, several.

    :raises ConfigError: one is not there, or the index cannot be read.
    """
    index = path / INDEX
    if (path / WEIGHTS).is_file() or not index.is_file():
        return [weights_file(path)]
    try:
        names = sorted(set(json.loads(index.read_text(encoding='utf-8'))['weight_map'].values()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(f'checkpoint {str(path)!r}: {INDEX} cannot be read ({error}): copy it again') from error
    missing = [name for name in names if not (path / name).is_file()]
    if missing or not names:
        raise ConfigError(f'checkpoint {str(path)!r} lacks files that {INDEX} lists: {_some(missing)}: copy them there')
    return [path / name for name in names]


class TorchFile:
    """A mapping of tensors that torch.save wrote, with the methods of `safe_open` that are used here."""

    def __init__(self, path: Path) -> None:
        tensors = torch.load(path, map_location='cpu', weights_only=True, mmap=True)
        if not isinstance(tensors, Mapping) or not all(isinstance(value, torch.Tensor) for value in tensors.values()):
            raise ValueError('it is no mapping of names to tensors')
        self._tensors = tensors

    def keys(self) -> list[str]:
        """Return the names of all tensors."""
        return list(self._tensors)

    def shape(self, name: str) -> list[int]:
        """Return the shape of a tensor."""
        return list(self._tensors[name].shape)

    def get_tensor(self, name: str) -> torch.Tensor:
        """Return a tensor."""
        return self._tensors[name]


def _open(path: Path) -> safe_open | TorchFile:
    try:
        return TorchFile(path) if path.suffix == TORCH_SUFFIX else safe_open(path, framework='pt')
    except pickle.UnpicklingError as error:
        raise ConfigError(f'checkpoint file {str(path)!r} holds more than tensors, and such files can run code: save '
                          'its state_dict alone, as safetensors') from error
    except (SafetensorError, OSError, ValueError, RuntimeError, EOFError) as error:
        raise ConfigError(f'checkpoint file {str(path)!r} cannot be read: {" ".join(str(error).split())}') from error


def _shapes(file: safe_open | TorchFile, prefix: str) -> dict[str, list[int]]:
    """Return the shape of every tensor by its name without the prefix; a name that lacks it counts as unknown."""
    return {name[len(prefix):] if name.startswith(prefix) else f'{name} (without {prefix!r})':
            file.shape(name) if isinstance(file, TorchFile) else file.get_slice(name).get_shape()
            for name in file.keys()}


def _match(path: Path, wanted: Mapping[str, list[int]], given: Mapping[str, list[int]], sources: Mapping[str, Source],
           unused: Collection[str]) -> dict[str, tuple[str, ...]]:
    """Return the tensors that make up each parameter, or raise an error that lists every problem."""
    missing, wrong, parts = [], [], {}
    read = set(unused)
    for name, shape in wanted.items():
        source = sources[name]
        names = source.names
        read.update(names, source.instead)
        if names[0] not in given:
            names = next(((other,) for other in source.instead if other in given), names)
        rows = source.rows or (shape[0] // len(names),) * len(names)
        for part, count in zip(names, rows):
            if part not in given:
                missing.append(part)
            elif given[part] != [count, *shape[1:]]:
                wrong.append(f'{part} is {given[part]}, not {[count, *shape[1:]]}')
        parts[name] = names
    problems = [f'{len(names)} {kind}: {_some(names)}' for kind, names in (
        ('missing', missing), ('unknown', [name for name in given if name not in read]), ('of wrong shape', wrong))
        if names]
    if problems:
        raise ConfigError(f'checkpoint {str(path)!r} does not fit the model: {"; ".join(problems)}')
    return parts


def _some(names: list[str]) -> str:
    more = f' and {len(names) - LISTED} more' if len(names) > LISTED else ''
    return ', '.join(names[:LISTED]) + more


def _replace(network: nn.Module, name: str, tensor: torch.Tensor) -> None:
    module, _, leaf = name.rpartition('.')
    setattr(network.get_submodule(module), leaf, nn.Parameter(tensor, requires_grad=False))


def _free_bytes(device: str) -> int:
    if device.startswith('cuda'):
        return torch.cuda.mem_get_info(device)[0]
    return psutil.virtual_memory().available
