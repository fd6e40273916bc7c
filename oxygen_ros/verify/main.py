"""`oxygen_ros verify CASE_DIR`: exit 0 when everything agrees, 1 when something does not, 2 when it cannot be run."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch

from oxygen_ros.engine.scheduler import Mode
from oxygen_ros.errors import ConfigError
from oxygen_ros.models.registry import DTYPES, require_device
from oxygen_ros.verify import pi05, preprocess
from oxygen_ros.verify.report import Report

MOST_BRANCHES = 8
CASE = 'case.json'  # of the families on Qwen3-VL


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `oxygen_ros verify`."""
    parser.add_argument('case', type=Path, metavar='CASE_DIR',
                        help='directory with config.json, weights, inputs and expected values')
    parser.add_argument('--mode', default='all', choices=['all', *(mode.value for mode in Mode)],
                        help='mode of the engine (default: all of them)')
    parser.add_argument('--branches', type=int, nargs='+', metavar='N', default=list(range(1, MOST_BRANCHES + 1)),
                        help=f'texts that decode at the same time, 1 to {MOST_BRANCHES} (default: each of them)')
    parser.add_argument('--dtype', default='float32', choices=list(DTYPES), help='default: float32')
    parser.add_argument('--device', default='cpu', help='where to compute (default: cpu)')
    parser.add_argument('--json', action='store_true', help='print JSON instead of tables')


def main(arguments: argparse.Namespace) -> int:
    """Run the case; return the exit code."""
    wrong = [number for number in arguments.branches if not 1 <= number <= MOST_BRANCHES]
    if wrong:
        raise ConfigError(f'--branches {wrong[0]} is out of range: give numbers from 1 to {MOST_BRANCHES}')
    modes = list(Mode) if arguments.mode == 'all' else [Mode(arguments.mode)]
    report = verify(arguments.case, modes, arguments.branches, arguments.dtype, arguments.device)
    if arguments.json:
        print(json.dumps({'case': str(arguments.case), 'dtype': arguments.dtype, **report.as_dict()}, indent=1))
    else:
        from oxygen_ros.verify.table import show  # JSON needs no rich

        show(report, arguments.case.resolve().name)
    return 0 if report.passed else 1


def verify(case: Path, modes: list[Mode], branches: list[int], dtype: str = 'float32', device: str = 'cpu') -> Report:
    """
    Compare what a case directory expects with what the product computes.

    :raises ConfigError: it is no case directory, or its weights do not fit.
    """
    require_device(device)
    report = Report()
    if (case / preprocess.VECTORS).is_file():
        preprocess.run(case, report)
    elif (case / pi05.INPUTS).is_file():
        with torch.inference_mode():
            pi05.run(case, report, modes, branches, dtype, device)
    elif (case / CASE).is_file():
        from oxygen_ros.verify import qwen3_vl, starvla, xiaomi  # take transformers along, for which others do not wait

        content = qwen3_vl.read_content(case)
        if not {'robot_type', 'framework'} & set(content):
            raise ConfigError(f'case {str(case)!r} names neither a robot_type (Xiaomi-Robotics-0) nor a framework '
                              '(StarVLA)')
        with torch.inference_mode():
            (xiaomi if 'robot_type' in content else starvla).run(case, report, modes, branches, dtype, device)
    else:
        raise ConfigError(f'{str(case)!r} is no case directory: it has none of {pi05.INPUTS}, {CASE} and '
                          f'{preprocess.VECTORS}')
    return report
