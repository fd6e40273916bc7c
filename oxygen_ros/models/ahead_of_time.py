"""
Compiles a function ahead of time (torch.export and AOTInductor), once per machine: the result is kept on the disk.

Not by `torch.compile`, whose calls check their arguments and go through Python: that takes as long as the operations
that a small function saves. And nothing can be compiled again while a robot acts: there is no compiler behind what this
returns.
"""

from __future__ import annotations

import hashlib
import logging
import os
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import nn

logger = logging.getLogger(__name__)

Run = Callable[[list[torch.Tensor]], list[torch.Tensor]]

MOST_ROWS = 1 << 20
EXAMPLE_ROWS = 64  # one number for all, so that code is found again; 0 and 1 would be taken for fixed
COMMON = {'compile_threads': 1}  # no processes that stay
SERIAL = {**COMMON, 'cpp.threads': 1}
PARALLEL = {**COMMON, 'cpp.dynamic_threads': True}  # on as many threads as torch has, however little there is to do
PARALLEL_FROM = 1 << 15  # numbers; torch's own operations begin there too


class _Module(nn.Module):
    """A function as the module that `torch.export` wants."""

    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self._function = function

    def forward(self, *tensors: torch.Tensor) -> object:
        """Do the function, on copies: it may write into its arguments. Compiled, it makes no copies."""
        return self._function(*(tensor.clone() for tensor in tensors))


def compile_ahead(function: Callable[..., object], examples: Sequence[torch.Tensor], many: Sequence[bool],
                  ) -> Callable[..., object]:
    """
    Compile a function of contiguous tensors, and of nothing else, that returns one or a tuple of several.

    :param examples: arguments; the result takes no others than of their dtypes and shapes, and does not check that.
    :param many: which of them may have any number of rows, the same for all of these.
    :returns: the compiled function, for one thread at a time.
    :raises ValueError: the function has weights of its own.
    :raises Exception: whatever torch raises when it has no compiler, or cannot compile the function.
    """
    rows = torch.export.Dim('rows', min=1, max=MOST_ROWS)
    with torch.inference_mode(False), torch.no_grad():
        # Tensors of inference mode cannot be exported.
        given = tuple(torch.zeros((EXAMPLE_ROWS if some else len(tensor), *tensor.shape[1:]), dtype=tensor.dtype,
                                  device=tensor.device) for tensor, some in zip(examples, many))
        program = torch.export.export(_Module(function), given,
                                      dynamic_shapes=(tuple({0: rows} if some else None for some in many),))
        if program.state_dict or program.constants:  # they would be kept with it, under the same name as others
            raise ValueError(f'{function} has weights of its own: give them as arguments')
        key = '\n'.join((str(program.graph), torch.__version__, _machine(given[0].device), *(
            f'{tensor.dtype} {list(tensor.shape)} {tensor.device} {some}' for tensor, some in zip(given, many))))
        serial = _callable(program, key, SERIAL)
        if given[0].device.type != 'cpu' or torch.get_num_threads() == 1 or not any(many):
            return serial
        parallel = _callable(program, key, PARALLEL)
    return lambda *tensors: (serial if tensors[0].numel() < PARALLEL_FROM else parallel)(*tensors)


def cache_folder() -> Path:
    """Return where compiled functions are kept."""
    return Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache', 'oxygen_ros', 'compiled')


def _callable(program: torch.export.ExportedProgram, key: str, options: Mapping[str, object]) -> Callable[..., object]:
    device = program.example_inputs[0][0].device
    run = _load(hashlib.sha256(f'{key}\n{options}'.encode()).hexdigest(), program, options, device)
    if len(program.graph_signature.user_outputs) == 1:
        return lambda *tensors: run(list(tensors))[0]
    return lambda *tensors: tuple(run(list(tensors)))


def _load(name: str, program: torch.export.ExportedProgram, options: Mapping[str, object], device: torch.device) -> Run:
    kept = cache_folder() / f'{name}.pt2'
    if kept.is_file():
        try:
            return _loaded(kept, device)
        except Exception as error:  # noqa: B902 - a damaged file is made again
            logger.info('%s cannot be loaded and is compiled again: %s', kept, error)
    try:
        kept.parent.mkdir(parents=True, exist_ok=True)
        parent = kept.parent
    except OSError as error:
        logger.info('%s: compiled functions are not kept', error)
        parent = None
    with tempfile.TemporaryDirectory(prefix='new_', dir=parent) as folder:
        package = Path(torch._inductor.aoti_compile_and_package(program, package_path=str(Path(folder, 'new.pt2')),
                                                                inductor_configs=dict(options)))
        run = _loaded(package, device)
        if parent is not None:
            package.replace(kept)  # whole or not at all, whoever else compiles the same
    return run


def _loaded(package: Path, device: torch.device) -> Run:
    place = {} if device.index is None else {'device_index': device.index}
    # Without the locks of several threads, which CUDA graphs do not like.
    return torch._inductor.aoti_load_package(str(package), run_single_threaded=True, **place).loader.run


def _machine(device: torch.device) -> str:
    """Return what code is made for: instructions of the processor, and the kind of a GPU."""
    try:
        processor = next((line for line in Path('/proc/cpuinfo').read_text(encoding='utf-8').splitlines()
                          if line.lower().startswith(('flags', 'features'))), '')
    except OSError:
        processor = platform.processor()
    gpu = torch.cuda.get_device_name(device) if device.type == 'cuda' else ''
    return f'{platform.machine()} {processor} {gpu}'
