"""`oxygen_ros train`: trains the built-in policy, or writes the checkpoint of a run."""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import signal
import sys
from pathlib import Path

import torch

from oxygen_ros.errors import ConfigError
from oxygen_ros.simulation.dataset import Dataset
from oxygen_ros.training.config import TrainingConfig, read_config
from oxygen_ros.training.run_folder import RunFolder

RESTART = 75  # exit code of a run that has grown too large and wants to be started again (EX_TEMPFAIL)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of this subcommand."""
    parser.add_argument('--run', required=True, help='folder of the run; if it holds one, that goes on')
    parser.add_argument('--data', help='dataset to train on (made by `oxygen_ros dataset`)')
    parser.add_argument('--held-out', help='dataset that is evaluated on the way and never trained on')
    parser.add_argument('--config', default='openarm', help='recipe: a name in config/training or a path (openarm)')
    parser.add_argument('--start-from', metavar='RUN', help='folder of the finished run that a recipe with start_from '
                        'begins with; needed once')
    parser.add_argument('--steps', type=int, help='instead of those of the recipe')
    parser.add_argument('--threads', type=int, default=0, help='of torch; 0 takes all cores')
    parser.add_argument('--compile', action='store_true',
                        help='let torch.compile fuse the layers: nearly twice as quick, after some minutes at the '
                        'start; needs a C++ compiler')
    parser.add_argument('--precision', choices=('auto', 'bfloat16', 'float32'), default='auto',
                        help='auto takes bfloat16 where the CPU multiplies it in hardware (AMX)')
    parser.add_argument('--max-rss', type=float, default=6000, metavar='MIB',
                        help='save and start again when the process has grown beyond (6000)')
    parser.add_argument('--export', metavar='DIR', help='write the checkpoint of the run so far, and train nothing')
    parser.add_argument('--card', metavar='JSON', action='append', default=[],
                        help='with --export: results of `oxygen_ros evaluate` for the model card; several may be given')


def main(arguments: argparse.Namespace) -> int:
    """Run the subcommand; see `cli.py` for the exit codes."""
    folder = RunFolder(arguments.run, _say)
    if arguments.export:
        from oxygen_ros.training.export import export
        export(folder, Path(arguments.export), [Path(path) for path in arguments.card])
        return 0
    if not arguments.data:
        raise ConfigError('--data is missing: give the dataset to train on, made by `oxygen_ros dataset`')
    torch.set_num_threads(arguments.threads or os.cpu_count() or 1)
    config = folder.recipe() or _recipe(arguments)
    dataset = Dataset(arguments.data)
    if config.data_frames == 0:
        config = dataclasses.replace(config, data_frames=len(dataset))  # data that comes later is not for this run
    _start(folder, config, arguments.start_from)
    folder.begin(config)
    held_out = Dataset(arguments.held_out) if arguments.held_out else None

    from oxygen_ros.training.trainer import Trainer
    trainer = Trainer(config, dataset, folder, held_out, arguments.compile, _bfloat16(arguments.precision))
    parameters = sum(parameter.numel() for parameter in trainer.network.parameters())
    print(f'{parameters / 1e6:.2f} million parameters, {len(dataset)} frames, step {trainer.state.step} of '
          f'{config.last_step}', flush=True)
    ended = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.append(True))
    if trainer.run(lambda: bool(ended), arguments.max_rss):
        return 0
    if ended:
        return 130
    print('the process has grown too large: it starts again from the saved state', flush=True)
    os.execv(sys.executable, [sys.executable, '-m', 'oxygen_ros', *sys.argv[1:]])


def _start(folder: RunFolder, config: TrainingConfig, other: str | None) -> None:
    """See to it that a run which begins with another one has it."""
    if other and not config.start_from:
        raise ConfigError('--start-from is for recipes with start_from: this one begins with random weights')
    if config.start_from and folder.start is None:
        if not other:
            raise ConfigError(f'the recipe begins with the weights of recipe {config.start_from}: give the folder of '
                              'its run with --start-from')
        folder.start_from(RunFolder(other))


def _recipe(arguments: argparse.Namespace) -> TrainingConfig:
    config = read_config(arguments.config)
    return config if arguments.steps is None else dataclasses.replace(config, steps=arguments.steps)


def _bfloat16(choice: str) -> bool:
    if choice != 'auto':
        return choice == 'bfloat16'
    with contextlib.suppress(OSError):
        return 'amx_bf16' in Path('/proc/cpuinfo').read_text()
    return False


def _say(line: dict) -> None:
    print(' '.join(f'{key}={value:.4g}' if isinstance(value, float) else f'{key}={value}'
                   for key, value in line.items() if key != 'held_out'), flush=True)
    if line.get('held_out'):
        print('  held out: ' + ' '.join(f'{key}={value:.3f}' for key, value in line['held_out'].items()
                                        if '/count/' not in key), flush=True)
