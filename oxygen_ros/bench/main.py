"""`oxygen_ros bench`: measures the engine's modes, the nodes (`ros`), or predicts what hardware allows (`predict`)."""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path

from oxygen_ros.bench.workload import Arrivals
from oxygen_ros.errors import ConfigError
from oxygen_ros.suite import MODES

# Subcommand -> (module, one-line help). Without one the engine is measured.
SUBCOMMANDS = {
    'ros': ('oxygen_ros.bench.ros', 'measure the way from messages to commands through the real nodes'),
    'memory': ('oxygen_ros.bench.memory', 'measure queries of the memory with 100,000 entries'),
    'together': ('oxygen_ros.bench.together', 'measure actions while texts, notes and service calls go on'),
    'predict': ('oxygen_ros.bench.predict', 'predict the least time that a device can need, from bytes and operations'),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `oxygen_ros bench`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = '\n'.join(['subcommands (each has --help):',
                               *(f'  {name:8}  {summary}' for name, (_, summary) in SUBCOMMANDS.items())])
    subparsers = parser.add_subparsers(dest='what', metavar='SUBCOMMAND', required=False)
    for name, (module, summary) in SUBCOMMANDS.items():
        subparser = subparsers.add_parser(name, description=summary[0].upper() + summary[1:] + '.')
        importlib.import_module(module).add_arguments(subparser)
    add_model_arguments(parser)
    _add_workload_arguments(parser)
    _add_real_time_arguments(parser)
    parser.add_argument('--modes', nargs='+', choices=MODES, metavar='MODE',
                        help=f'what to measure: {", ".join(MODES)} (default: all)')
    parser.add_argument('--rounds', type=int, default=9, metavar='R', help='frames per mode that count (default: 9)')
    parser.add_argument('--frames', type=int, default=0, metavar='F',
                        help='endurance: so many frames, only of continuous_batching unless --modes says more; fails '
                             'when frame time or memory grow')
    parser.add_argument('--no-bare', action='store_true', help='do not measure the model calls alone')
    parser.add_argument('--json', type=Path, metavar='FILE', help='write the results to a file')
    parser.add_argument('--plots', type=Path, metavar='FOLDER', help='draw pictures of the results')


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say what runs, and on what."""
    parser.add_argument('--model', default='bench_m', help='model, by name or as a path to a .yaml file (default: '
                                                           'bench_m)')
    parser.add_argument('--checkpoint', type=Path, metavar='DIR', help='folder of the weights (default: random ones)')
    parser.add_argument('--dtype', choices=('float32', 'bfloat16'), default='float32')
    parser.add_argument('--device', default='cpu', help='of torch, for example cuda (default: cpu)')
    parser.add_argument('--threads', type=int, default=0, metavar='T', help='of torch on the CPU (default: its own)')
    parser.add_argument('--set', action='append', default=[], metavar='NAME=VALUE', dest='options',
                        help='another option of loading or of the engine, for example packing=plain (may be repeated)')
    parser.add_argument('--graphs', choices=('auto', 'on', 'off'), help='CUDA graphs: static shapes, captured once and '
                                                                        'replayed (default: auto)')
    parser.add_argument('--compile', choices=('auto', 'on', 'off'), nargs='+', metavar='HOW',
                        help='compile what lies between the products of a layer: auto, on or off (default: off); '
                             'several give a series')
    parser.add_argument('--seed', type=int, default=0, help='of weights, pictures, noise and arrivals (default: 0)')


def _add_workload_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add('--text-length', type=int, nargs='+', default=[30], metavar='N',
        help='tokens of a text (default: 30); several give a series')
    add('--tokens-per-frame', type=int, nargs='+', default=[5], metavar='K',
        help='decode steps per frame with continuous batching (default: 5); several give a series')
    add('--denoise-steps', type=int, nargs='+', default=[10], metavar='S',
        help='flow-matching steps of an action (default: 10); several give a series')
    add('--arrivals', choices=[kind.value for kind in Arrivals], default=Arrivals.UNIFORM.value,
        help='how texts arrive; on average one per frame (default: uniform, one with every frame)')
    add('--burst', type=int, default=4, metavar='B', help='texts of a burst (default: 4)')
    add('--prompt-tokens', type=int, default=24, metavar='N', help="tokens of the instruction's prompt (default: 24)")
    add('--cameras', type=int, metavar='N', help='cameras that give pictures (default: all)')


def _add_real_time_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group('real time', 'Actions come due with a period, and texts decode in the time '
                                                 'between, instead of a fixed number of steps.').add_argument
    add('--adaptive', action='store_true', help='measure in real time')
    add('--cpu-time', action='store_true', help='count CPU time of this process as time, as if the machine were quiet; '
                                                'for the device cpu')
    add('--period', type=float, default=0.0, metavar='S', help='seconds from action to action (default: twice what an '
                                                               'action takes)')
    add('--seconds', type=float, default=20.0, metavar='S', help='to measure, of each mode (default: 20)')
    add('--blocks', type=int, default=4, metavar='B', help='turns of each mode (default: 4)')
    add('--rate', type=float, default=0.0, metavar='R', help='texts per second (default: one per period)')
    add('--permanent-load', action='store_true', help='a text waits at any time')
    add('--branches', type=int, default=8, metavar='B', help='texts that run at the same time, at most (default: 8)')


def main(arguments: argparse.Namespace) -> int:
    """Measure, print and write. Exit code 1 when the modes did not do the same work, or an endurance check failed."""
    if arguments.what:
        return importlib.import_module(SUBCOMMANDS[arguments.what][0]).main(arguments)
    if arguments.json:
        check_writable(arguments.json)
    from oxygen_ros.bench.run import run  # torch comes with it

    return run(arguments)


def check_writable(path: Path) -> None:
    """
    Check, before work begins, that a result can be written.

    :raises ConfigError: it cannot.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open('a').close()
    except OSError as error:
        raise ConfigError(f'{str(path)!r} cannot be written ({error.strerror}): give another file') from error
