"""`oxygen_ros bench`: measures the modes of the engine against each other."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from datetime import datetime, timezone
from pathlib import Path

from oxygen_ros.bench.workload import Arrivals, Workload
from oxygen_ros.errors import ConfigError
from oxygen_ros.suite import MODES

FAILED = 1
SCHEMA = 'oxygen_ros.bench/1'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `oxygen_ros bench`."""
    add_model_arguments(parser)
    parser.add_argument('--text-length', type=int, nargs='+', default=[30], metavar='N',
                        help='tokens of a text (default: 30); several give a series')
    parser.add_argument('--tokens-per-frame', type=int, nargs='+', default=[5], metavar='K',
                        help='decode steps per frame with continuous batching (default: 5); several give a series')
    parser.add_argument('--denoise-steps', type=int, nargs='+', default=[10], metavar='S',
                        help='flow-matching steps of an action (default: 10); several give a series')
    parser.add_argument('--arrivals', choices=[kind.value for kind in Arrivals], default=Arrivals.UNIFORM.value,
                        help='how texts arrive; on average one per frame (default: uniform, one with every frame)')
    parser.add_argument('--burst', type=int, default=4, metavar='B', help='texts of a burst (default: 4)')
    parser.add_argument('--prompt-tokens', type=int, default=24, metavar='N',
                        help="tokens of the instruction's prompt (default: 24)")
    parser.add_argument('--cameras', type=int, metavar='N', help='cameras that give pictures (default: all)')
    parser.add_argument('--modes', nargs='+', choices=MODES, default=list(MODES), help='what to measure (default: all)')
    parser.add_argument('--rounds', type=int, default=9, metavar='R', help='frames per mode that count (default: 9)')
    parser.add_argument('--no-bare', action='store_true', help='do not measure the model calls alone')
    parser.add_argument('--json', type=Path, metavar='FILE', help='write the results to a file')


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that say what runs, and on what."""
    parser.add_argument('--model', default='bench_m', help='model, by name or as a path to a .yaml file (default: '
                                                           'bench_m)')
    parser.add_argument('--checkpoint', type=Path, metavar='DIR', help='folder of the weights (default: random ones)')
    parser.add_argument('--dtype', choices=('float32', 'bfloat16'), default='float32')
    parser.add_argument('--device', default='cpu', help='of torch, for example cuda (default: cpu)')
    parser.add_argument('--threads', type=int, default=0, metavar='T', help='of torch on the CPU (default: its own)')
    parser.add_argument('--seed', type=int, default=0, help='of weights, pictures, noise and arrivals (default: 0)')


def main(arguments: argparse.Namespace) -> int:
    """Measure, print and write. Exit code 1 when the modes did not do the same work."""
    import torch

    from oxygen_ros.bench.lane import BenchFailed
    from oxygen_ros.bench.machine import machine, versions
    from oxygen_ros.bench.measure import measure
    from oxygen_ros.bench.result import case_result
    from oxygen_ros.bench.settings import BenchSettings
    from oxygen_ros.bench.table import case_table
    from oxygen_ros.engine.scheduler import Mode
    from oxygen_ros.models.registry import DTYPES, LoadOptions, load_model, read_model_file

    cases = [BenchSettings(
        arguments.model, arguments.checkpoint, arguments.dtype, arguments.device, arguments.threads, arguments.cameras,
        tuple(Mode(mode) for mode in dict.fromkeys(arguments.modes)), arguments.rounds, bare=not arguments.no_bare,
        seed=arguments.seed,
        workload=Workload(length, tokens, steps, Arrivals(arguments.arrivals), arguments.burst,
                          arguments.prompt_tokens, arguments.seed))
             for length, tokens, steps in itertools.product(arguments.text_length, arguments.tokens_per_frame,
                                                            arguments.denoise_steps)]
    if arguments.json:
        check_writable(arguments.json)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    options = LoadOptions(arguments.checkpoint, DTYPES[arguments.dtype], arguments.device, arguments.seed)
    model = load_model(read_model_file(arguments.model), options)
    result = {'schema': SCHEMA, 'created': datetime.now(timezone.utc).isoformat(timespec='seconds'),
              'machine': machine(arguments.device), 'versions': versions(),
              'config': {key: str(value) if isinstance(value, Path) else value
                         for key, value in vars(arguments).items()},
              'weights': model.spec.weights, 'random_weights': model.spec.random_weights, 'cases': []}
    print(f'{model.spec.name}, weights: {model.spec.weights}, {arguments.dtype} on {arguments.device}, '
          f'{torch.get_num_threads()} threads', flush=True)
    for settings in cases:
        try:
            case = measure(model, settings, _progress)
        except BenchFailed as error:
            print('refused:', error, file=sys.stderr)
            return FAILED
        result['cases'].append(case_result(case, model.spec))
        print(case_table(result['cases'][-1]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + '\n', encoding='utf-8')
    return 0


def check_writable(path: Path) -> None:
    """
    Check, before work begins, that a result can be written.

    :raises ConfigError: it cannot.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    except OSError as error:
        raise ConfigError(f'{str(path)!r} cannot be written ({error.strerror}): give another file') from error


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f'\r\033[K{text}', end='', file=sys.stderr, flush=True)
