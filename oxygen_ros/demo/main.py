"""`oxygen_ros demo`: plays a recording through all nodes, shows what they do and sums it up."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from importlib.util import find_spec
from typing import Any

from rich.console import Console

from oxygen_ros.demo.domain import free_domain
from oxygen_ros.demo.settings import Settings, check_settings
from oxygen_ros.suite import MODES

INTERRUPTED = 130
LOG_WIDTH = 120  # characters of a table that goes to a file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `oxygen_ros demo`."""
    parser.add_argument('--bag', metavar='BAG', help='recording to play: folder of a rosbag2 recording, or an .mcap or '
                                                     '.db3 file; default: the Unitree G1 recording of the source tree')
    parser.add_argument('--duration', type=float, default=45.0, metavar='S',
                        help='seconds to measure after the first action (default: 45)')
    parser.add_argument('--output', default='demo_output', metavar='FOLDER',
                        help='folder for the results (default: demo_output); those of an earlier run are replaced')
    parser.add_argument('--mode', choices=MODES, default='continuous_batching',
                        help='how the tasks share the model (default: continuous_batching)')
    parser.add_argument('--model', default='tiny', help='model, by name or as a path to a .yaml file (default: tiny)')
    parser.add_argument('--robot', default='unitree_g1',
                        help='robot, by name or as a path to a .yaml file (default: unitree_g1)')
    parser.add_argument('-p', '--param', action='append', default=[], metavar='NAME:=VALUE',
                        help='another parameter of the inference node (may be repeated), for example speech.rate:=8 to '
                             'have texts running all the time')
    parser.add_argument('--json', action='store_true', help='print the summary as JSON; progress goes to stderr')
    parser.add_argument('--plain', action='store_true', help='a line now and then instead of the live picture')


def main(arguments: argparse.Namespace) -> int:
    """Run the demo. Exit code 1 when something that should happen did not, 130 after Ctrl-C."""
    started = time.monotonic()
    if find_spec('matplotlib') is None:  # rather now than at the end
        raise ModuleNotFoundError(name='matplotlib')
    settings = check_settings(arguments)
    settings.prepare()
    console = Console(stderr=arguments.json)
    if not console.is_terminal:
        console.width = LOG_WIDTH
    domain = free_domain()
    os.environ |= {'ROS_DOMAIN_ID': str(domain), 'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST'}
    console.print(f'starting the nodes on {settings.bag.name}; to look at them from another terminal: '
                  f'ROS_DOMAIN_ID={domain} ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST', soft_wrap=True, highlight=False)

    from oxygen_ros.demo.run import DemoFailed, DemoRun, Interrupted  # ROS reads the environment when it is loaded

    try:
        record, end = DemoRun(settings, console, live=console.is_terminal and not arguments.plain).run()
    except Interrupted:
        console.print('stopped; the nodes have ended')
        return INTERRUPTED
    except DemoFailed as failure:
        print('failed:', failure, file=sys.stderr)
        return 1
    return _conclude(settings, console, record, end, started, arguments.json)


def _conclude(settings: Settings, console: Console, record: Any, end: float, started: float, as_json: bool) -> int:
    """Write the results, show them and return the exit code."""
    from oxygen_ros.demo.cycles import Trace, load_trace
    from oxygen_ros.demo.summary import Measured, failures, summarise, table_of
    from oxygen_ros.demo.timeline import draw_timeline

    problems = failures(record, end)
    if record.status is None:
        print('failed:', '; '.join(problems), file=sys.stderr)
        return 1
    trace = load_trace(settings.trace) if settings.trace.exists() else Trace((), (), ())
    summary = summarise(Measured(record, trace, end), {'bag': str(settings.bag), 'robot': settings.robot})
    title = f'{summary["model"]} ({summary["weights"]}), {summary["mode"]}'
    if not draw_timeline(trace, settings.timeline, title):
        problems.append(f'the trace {settings.trace} holds no action cycle')
    summary |= {'failures': problems, 'total_seconds': round(time.monotonic() - started, 1)}
    settings.summary.write_text(json.dumps(summary, indent=2, ensure_ascii=False) + '\n', encoding='utf-8')
    console.print(table_of(summary))
    console.print(f'results: {settings.output}/ (summary.json, timeline.png, trace.json, memory.db, *.log)',
                  soft_wrap=True, highlight=False)
    for problem in problems:
        print('failed:', problem, file=sys.stderr)
    if as_json:
        print(json.dumps(summary, ensure_ascii=False))
    return 1 if problems else 0
