"""Runs the measurements of a command line, prints the results and writes them."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path

import torch

from oxygen_ros.bench.endurance import endurance, endurance_lines
from oxygen_ros.bench.lane import BenchFailed
from oxygen_ros.bench.loading import load, read_options
from oxygen_ros.bench.machine import machine, versions
from oxygen_ros.bench.measure import measure
from oxygen_ros.bench.realtime import RealTimeSettings, measure_real_time
from oxygen_ros.bench.realtime_result import real_time_result, real_time_table
from oxygen_ros.bench.result import case_result
from oxygen_ros.bench.settings import BenchSettings
from oxygen_ros.bench.table import case_table
from oxygen_ros.bench.workload import Arrivals, Workload
from oxygen_ros.engine.compiling import Compile
from oxygen_ros.engine.graphs import Graphs
from oxygen_ros.engine.scheduler import Mode
from oxygen_ros.models.interface import VLAModel

FAILED = 1
SCHEMA = 'oxygen_ros.bench/1'


def run(arguments: argparse.Namespace) -> int:
    """Do what `oxygen_ros bench` is asked for; see `main`."""
    if arguments.plots and find_spec('matplotlib') is None:  # rather now than at the end
        raise ModuleNotFoundError(name='matplotlib')
    cases = settings_of(arguments)
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    model = load(arguments)
    result = header(arguments, model)
    print(f'{model.spec.name}, weights: {model.spec.weights}, {arguments.dtype} on {arguments.device}, '
          f'{torch.get_num_threads()} threads', flush=True)
    passed = True
    try:
        for settings in cases:
            if arguments.adaptive:
                _real_time(arguments, settings, model, result)
            else:
                passed &= _frames(arguments, settings, model, result)
    except BenchFailed as error:
        _progress('')
        print('refused:', error, file=sys.stderr)
        return FAILED
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + '\n', encoding='utf-8')
    if arguments.plots and result['cases']:
        from oxygen_ros.bench.plots import draw

        print('pictures:', *draw(result, arguments.plots))
    return 0 if passed else FAILED


def settings_of(arguments: argparse.Namespace) -> list[BenchSettings]:
    """Return the settings of each workload of a series."""
    engine = read_options(arguments.options)[1]
    if arguments.graphs:
        engine['graphs'] = Graphs(arguments.graphs)
    modes = arguments.modes or ([Mode.CONTINUOUS_BATCHING.value] if arguments.frames else list(Mode))
    return [BenchSettings(
        arguments.model, arguments.checkpoint, arguments.dtype, arguments.device, arguments.threads, arguments.cameras,
        tuple(Mode(mode) for mode in dict.fromkeys(modes)), arguments.frames or arguments.rounds,
        bare=not (arguments.no_bare or arguments.frames), seed=arguments.seed, engine={**engine, **compiled},
        workload=Workload(length, tokens, steps, Arrivals(arguments.arrivals), arguments.burst,
                          arguments.prompt_tokens, arguments.seed))
            for length, tokens, steps, compiled in itertools.product(
                arguments.text_length, arguments.tokens_per_frame, arguments.denoise_steps,
                [{'compile': Compile(how)} for how in arguments.compile or ()] or [{}])]


def header(arguments: argparse.Namespace, model: VLAModel) -> dict:
    """Return what belongs to every result: when, on what, with what."""
    config = {key: str(value) if isinstance(value, Path) else value for key, value in vars(arguments).items()}
    return {'schema': SCHEMA, 'created': datetime.now(timezone.utc).isoformat(timespec='seconds'),
            'machine': machine(arguments.device), 'versions': versions(), 'config': config, 'seed': arguments.seed,
            'model': model.spec.name, 'weights': model.spec.weights, 'random_weights': model.spec.random_weights,
            'cases': [], 'real_time': []}


def _frames(arguments: argparse.Namespace, settings: BenchSettings, model: VLAModel, result: dict) -> bool:
    case = measure(model, settings, _progress)
    figures = case_result(case, model.spec)
    result['cases'].append(figures)
    _progress('')
    print(case_table(figures), flush=True)
    if not arguments.frames:
        return True
    figures['endurance'] = endurance(case)
    print(*endurance_lines(figures['endurance']), sep='\n', flush=True)
    return figures['endurance']['passed']


def _real_time(arguments: argparse.Namespace, settings: BenchSettings, model: VLAModel, result: dict) -> None:
    real_time = RealTimeSettings(arguments.period, arguments.seconds, arguments.blocks, arguments.rate,
                                 arguments.permanent_load, arguments.branches, arguments.cpu_time)
    period, records = measure_real_time(model, settings, real_time, _progress)
    result['real_time'].append(real_time_result(settings, real_time, period, records, model.spec))
    _progress('')
    print(real_time_table(result['real_time'][-1]), flush=True)


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f'\r\033[K{text}', end='', file=sys.stderr, flush=True)
