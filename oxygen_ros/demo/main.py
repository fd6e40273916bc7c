"""`oxygen_ros demo`: runs everything in the simulator or on a recording, shows what it does and sums it up."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from rich.console import Console

from oxygen_ros.demo.bag_settings import check_bag_settings
from oxygen_ros.demo.domain import free_domain
from oxygen_ros.demo.simulator_settings import SEED, SimulatorSettings, check_simulator_settings
from oxygen_ros.suite import MODES, dds_environment

if TYPE_CHECKING:
    from oxygen_ros.demo.record import Record
    from oxygen_ros.demo.run import DemoRun
    from oxygen_ros.demo.settings import Settings

INTERRUPTED = 130
LOG_WIDTH = 120  # characters of a table that goes to a file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `oxygen_ros demo`."""
    parser.add_argument('--interactive', action='store_true',
                        help='you tell the robot and ask it, on the keyboard or from a pipe; help lists what it knows')
    parser.add_argument('--bag', nargs='?', const='', metavar='BAG',
                        help='play a recording instead of running the simulator: folder of a rosbag2 recording, or an '
                             '.mcap or .db3 file; without BAG the Unitree G1 recording of the source tree')
    parser.add_argument('--seed', type=int, default=SEED, metavar='N',
                        help=f'scene of the simulator, and script (default: {SEED})')
    parser.add_argument('--speed', type=float, default=1.0, metavar='X',
                        help='of simulated time: less than 1 for a slow machine (default: 1)')
    parser.add_argument('--duration', type=float, metavar='S',
                        help='seconds to measure after the first action: with --bag 45 by default; in the simulator '
                             'no further instruction begins then')
    parser.add_argument('--output', default='demo_output', metavar='FOLDER',
                        help='folder for the results (default: demo_output); those of an earlier run are replaced')
    parser.add_argument('--mode', choices=MODES, default='continuous_batching',
                        help='how the tasks share the model (default: continuous_batching)')
    parser.add_argument('--model', help='model, by name or as a path to a .yaml file (default: openarm; with --bag '
                                        'tiny)')
    parser.add_argument('--checkpoint', default='', metavar='DIR',
                        help='folder of the weights (default: those of the model file)')
    parser.add_argument('--robot', help='robot, by name or as a path to a .yaml file (default: openarm; with --bag '
                                        'unitree_g1)')
    parser.add_argument('-p', '--param', action='append', default=[], metavar='NAME:=VALUE',
                        help='another parameter of the inference node (may be repeated), for example speech.rate:=8 to '
                             'have texts running all the time')
    parser.add_argument('--json', action='store_true', help='print the summary as JSON; progress goes to stderr')
    parser.add_argument('--plain', action='store_true', help='lines instead of the live picture')


def main(arguments: argparse.Namespace) -> int:
    """Run the demo. Exit code 1 when something that should happen did not, 130 after Ctrl-C."""
    started = time.monotonic()
    if find_spec('matplotlib') is None:  # rather now than at the end
        raise ModuleNotFoundError(name='matplotlib')
    settings = _settings(arguments)
    settings.prepare()
    console = Console(stderr=arguments.json)
    if not console.is_terminal:
        console.width = LOG_WIDTH
    domain = free_domain()
    os.environ |= {'ROS_DOMAIN_ID': str(domain), 'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST', **dds_environment()}
    console.print(f'starting the nodes on {settings.source}; to look at them from another terminal: '
                  f'ROS_DOMAIN_ID={domain} ROS_AUTOMATIC_DISCOVERY_RANGE=LOCALHOST', soft_wrap=True, highlight=False)

    from oxygen_ros.demo.run import DemoFailed, Interrupted  # ROS reads the environment when it is loaded

    run = _make_run(settings, console, live=console.is_terminal and not arguments.plain)
    try:
        record, end = run.run()
    except Interrupted:
        console.print('stopped; the nodes have ended')
        return INTERRUPTED
    except DemoFailed as failure:
        print('failed:', failure, file=sys.stderr)
        return 1
    return _conclude(run, console, record, end, started, arguments.json)


def _settings(arguments: argparse.Namespace) -> Settings:
    """Return the settings of the demo that the arguments ask for; checks them."""
    if arguments.bag is None:
        return check_simulator_settings(arguments)
    return check_bag_settings(arguments)


def _make_run(settings: Settings, console: Console, live: bool) -> DemoRun:
    if isinstance(settings, SimulatorSettings):
        if settings.interactive:
            from oxygen_ros.demo.interactive_run import InteractiveRun
            return InteractiveRun(settings, console, live)
        from oxygen_ros.demo.scripted_run import ScriptedRun
        return ScriptedRun(settings, console, live)
    from oxygen_ros.demo.bag_run import BagRun
    return BagRun(settings, console, live)


def _conclude(run: DemoRun, console: Console, record: Record, end: float, started: float, as_json: bool) -> int:
    """Write the results, show them and return the exit code."""
    from oxygen_ros.demo.cycles import Trace, load_trace
    from oxygen_ros.demo.summary import Measured, summarise, table_of
    from oxygen_ros.demo.timeline import draw_timeline

    settings = run.settings
    problems = run.failures(record, end)
    if record.status is None:
        print('failed:', '; '.join(problems), file=sys.stderr)
        return 1
    trace = load_trace(settings.trace) if settings.trace.exists() else Trace((), (), ())
    summary: dict[str, Any] = summarise(
        Measured(record, trace, end, run.speed(record.chunks[0]), run.stopped), settings.described)
    title = f'{summary["model"]} ({summary["weights"]}), {summary["mode"]}'
    if not draw_timeline(trace, settings.timeline, title):
        problems.append(f'the trace {settings.trace} holds no action cycle')
    summary |= run.results(record)
    summary |= {'failures': problems, 'total_seconds': round(time.monotonic() - started, 1)}
    settings.summary.write_text(json.dumps(summary, indent=2, ensure_ascii=False) + '\n', encoding='utf-8')
    console.print(table_of(summary))
    video = f'{summary["video"]["file"]}, ' if summary.get('video') else ''
    console.print(f'results: {settings.output}/ ({video}summary.json, timeline.png, trace.json, memory.db, *.log)',
                  soft_wrap=True, highlight=False)
    for problem in problems:
        print('failed:', problem, file=sys.stderr)
    if as_json:
        print(json.dumps(summary, ensure_ascii=False))
    return 1 if problems else 0
