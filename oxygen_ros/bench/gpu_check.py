"""
What only a machine with a GPU can show, as one prepared run: `python bench/gpu_check.py`.

1. correctness: an engine on the GPU against the float64 reference, call by call, in float32 and bfloat16.
2. graphs: the same work with CUDA graphs and without gives the same, and what each stage takes.
3. compile: the same for compiled pieces. It needs a C++ compiler, and a minute or two the first time.
4. table: full-size π0.5 with random weights in all modes, and how far each stage is from what the hardware allows.

Each part is written to the result file as soon as it is done: a machine that is lent for minutes may go at any time.
On a CPU (`--device cpu --model ...`) all of it runs too, with small models, and is tested so.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import time
import traceback
from pathlib import Path

import torch

from oxygen_ros.bench.check import TOLERANCES, compare, reference_of, run_engine, same_results
from oxygen_ros.bench.devices import DEVICES, Device
from oxygen_ros.bench.energy import EnergyMeter
from oxygen_ros.bench.lane import BenchFailed
from oxygen_ros.bench.machine import machine, versions
from oxygen_ros.bench.measure import measure
from oxygen_ros.bench.predict import floor_lines, floors
from oxygen_ros.bench.result import case_result
from oxygen_ros.bench.settings import BenchSettings
from oxygen_ros.bench.sizes import sizes_of
from oxygen_ros.bench.stages import compile_times, graph_times
from oxygen_ros.bench.table import case_table, rows
from oxygen_ros.bench.workload import Workload
from oxygen_ros.engine.compiling import Compile
from oxygen_ros.engine.graphs import Graphs
from oxygen_ros.models.interface import VLAModel
from oxygen_ros.models.registry import DTYPES, LoadOptions, load_model, read_model_file

PARTS = ('correctness', 'graphs', 'compile', 'table')
SCHEMA = 'oxygen_ros.gpu_check/1'
CHECK_FRAMES, CHECK_STEPS = 3, 4
WAYS = (Graphs.OFF, Graphs.ON)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    result = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    result.add_argument('--device', default='cuda', help='of torch (default: cuda)')
    result.add_argument('--parts', nargs='+', choices=PARTS, default=list(PARTS), help='what to do (default: all)')
    result.add_argument('--check-model', default='bench_m', help='of all parts but the table (default: bench_m)')
    result.add_argument('--check-length', type=int, default=12, help='tokens of its texts (default: 12)')
    result.add_argument('--model', default='pi05_base', help='of the table (default: pi05_base, full-size π0.5)')
    result.add_argument('--dtype', default='bfloat16', choices=tuple(DTYPES), help='of the table (default: bfloat16)')
    result.add_argument('--cameras', type=int, help="that give pictures (default: all of the model's)")
    result.add_argument('--text-length', type=int, nargs='+', default=[30], metavar='N')
    result.add_argument('--tokens-per-frame', type=int, nargs='+', default=[5], metavar='K')
    result.add_argument('--denoise-steps', type=int, default=10, metavar='S')
    result.add_argument('--rounds', type=int, default=15, help='frames per mode (default: 15)')
    result.add_argument('--json', type=Path, default=Path('gpu_check.json'), metavar='FILE',
                        help='result file (default: gpu_check.json)')
    return result


def main(words: list[str] | None = None) -> int:
    """Do all parts, whatever becomes of one; exit code 1 when a part failed."""
    arguments = parser().parse_args(words)
    torch.backends.cuda.matmul.allow_tf32 = False  # float32 means float32
    try:
        result = {'schema': SCHEMA, 'machine': machine(arguments.device), 'versions': versions(), 'parts': {}}
    except (RuntimeError, AssertionError) as error:
        print(f'error: device {arguments.device!r} is not available: {error}', file=sys.stderr)
        return 2
    print(json.dumps(result['machine']), flush=True)
    work = {'correctness': correctness, 'graphs': graphs, 'compile': compiling, 'table': table}
    passed = True
    for part in arguments.parts:
        start = time.perf_counter()
        print(f'== {part}', flush=True)
        try:
            figures = work[part](arguments)
        except Exception as error:  # noqa: B902 - the other parts are worth having
            traceback.print_exc()
            figures = {'passed': False, 'error': f'{type(error).__name__}: {error}'}
        figures['seconds'] = time.perf_counter() - start
        result['parts'][part] = figures
        arguments.json.write_text(json.dumps(result, indent=1) + '\n', encoding='utf-8')
        passed &= figures['passed']
        print(f'== {part}: {"passed" if figures["passed"] else "FAILED"}, {figures["seconds"]:.1f} s', flush=True)
    print('result:', arguments.json)
    return 0 if passed else 1


def correctness(arguments: argparse.Namespace) -> dict:
    """Compare an engine on the device with the reference, in each dtype, with graphs and without."""
    results = {}
    for name, dtype in DTYPES.items():
        model = _load(arguments.check_model, dtype, arguments.device)
        reference = reference_of(model, dict(model.network.state_dict()), arguments.device)  # before it is packed
        for way in WAYS:
            seen = run_engine(model, CHECK_FRAMES, arguments.check_length, CHECK_STEPS, graphs=way)
            result = compare(seen, reference, dtype, CHECK_STEPS, arguments.device)
            results[f'{name}, graphs {way.value}'] = result
            print(f'{name}, graphs {way.value}', json.dumps(result), flush=True)
    return {'passed': all(result['passed'] for result in results.values()), 'ways': results}


def graphs(arguments: argparse.Namespace) -> dict:
    """Compare the engine with graphs and without: results, and what decode steps and denoising take."""
    dtype = DTYPES[arguments.dtype]
    model = _load(arguments.check_model, dtype, arguments.device)
    seen, times = {}, {}
    for way in WAYS:
        seen[way] = run_engine(model, CHECK_FRAMES, arguments.check_length, CHECK_STEPS, graphs=way)
        times[way.value] = graph_times(model, way, arguments.denoise_steps)
    return _ways('graphs', same_results(seen[Graphs.ON], seen[Graphs.OFF], TOLERANCES[dtype]), times)


def compiling(arguments: argparse.Namespace) -> dict:
    """Compare the engine compiled and not: results, and what each stage takes."""
    dtype = DTYPES[arguments.dtype]
    model = _load(arguments.check_model, dtype, arguments.device)
    on, off = (run_engine(model, CHECK_FRAMES, arguments.check_length, CHECK_STEPS, graphs=Graphs.OFF, compile=way)
               for way in (Compile.ON, Compile.OFF))
    return _ways('compile', same_results(on, off, TOLERANCES[dtype]), compile_times(model, arguments.denoise_steps))


def _ways(what: str, same: dict, times: dict[str, dict[str, float]]) -> dict:
    """Print and return how two ways compare. :param times: seconds of each stage, by way."""
    print(json.dumps(same), flush=True)
    stages = next(iter(times.values()))
    print(rows('ms', [f'{what} {way}' for way in times], [
        (stage, [f'{1e3 * figures[stage]:.3f}' for figures in times.values()]) for stage in stages]), flush=True)
    return {'passed': same['passed'], 'same': same, 'stage_seconds': times}


def table(arguments: argparse.Namespace) -> dict:
    """Measure the modes on the full-size model with random weights, and compare each stage with its floor."""
    dtype = DTYPES[arguments.dtype]
    model = _load(arguments.model, dtype, arguments.device)
    device, cases, passed = known_device(arguments.device), [], True
    for length in arguments.text_length:
        for tokens in arguments.tokens_per_frame:
            settings = BenchSettings(arguments.model, None, arguments.dtype, arguments.device,
                                     cameras=arguments.cameras, rounds=arguments.rounds,
                                     workload=Workload(length, tokens, arguments.denoise_steps))
            try:
                figures = case_result(measure(model, settings), model.spec)
            except BenchFailed as error:
                print('refused:', error, flush=True)
                passed = False
                continue
            print(case_table(figures), flush=True)
            if device is not None:
                figures['floor'] = floors(sizes_of(arguments.model), figures, device.flops, device.bandwidth,
                                          dtype.itemsize)
                print(*floor_lines(figures['floor']), sep='\n', flush=True)
            cases.append(figures)
    return {'passed': passed and bool(cases), 'device': device and dataclasses.asdict(device), 'cases': cases,
            'energy': EnergyMeter(arguments.device).available}


def known_device(device: str) -> Device | None:
    """Return what is known about a GPU, by its name; None if nothing is."""
    if not device.startswith('cuda'):
        return None
    name = torch.cuda.get_device_name(device).lower().replace(' ', '')
    for key, known in DEVICES.items():
        if key in name:
            return known
    return None


def _load(name: str, dtype: torch.dtype, device: str, **options: object) -> VLAModel:
    return load_model(read_model_file(name), LoadOptions(None, dtype, device, **options))
