"""
`oxygen_ros bench ros`: from messages in to commands out, through the real nodes over DDS.

This process plays the robot: it publishes pictures and joint states and waits for trajectories. Perception and
inference are processes of their own, as on a robot. The engine's trace says what of the way was the model's; what was
not is the suite's own.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from oxygen_ros.bench.figures import Figures
from oxygen_ros.errors import OxygenError
from oxygen_ros.suite import MODES, NodeRun, dds_environment, suite_arguments

if TYPE_CHECKING:
    from oxygen_ros.nodes.bench_probe import BenchProbe, ProbeRecord

SETUP_SECONDS = 120.0  # until the first chunk
TICK = 0.05
SCHEMA = 'oxygen_ros.bench_ros/1'


class RosBenchFailed(OxygenError):
    """The run came to no result."""


@dataclass(frozen=True)
class Way:
    """
    The way of one frame from its pictures to its trajectory, in seconds.

    :param to_frame: pictures published -> frame received: perception, and DDS twice.
    :param waiting: frame received -> its prefill begins: the action is made as late as is safe.
    :param model: prefill and denoising. :param between: the engine's own part between the two.
    :param to_command: chunk ready -> trajectory received: limits, conversion, DDS.
    """

    to_frame: float
    waiting: float
    model: float
    between: float
    to_command: float

    @property
    def total(self) -> float:
        """Pictures published -> trajectory received."""
        return self.to_frame + self.waiting + self.model + self.between + self.to_command

    @property
    def suite(self) -> float:
        """What is neither the model's nor waiting for its turn."""
        return self.to_frame + self.between + self.to_command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `oxygen_ros bench ros`."""
    parser.add_argument('--model', default='tiny', help='by name or as a path to a .yaml file (default: tiny)')
    parser.add_argument('--checkpoint', default='', metavar='DIR', help='folder of the weights (default: random ones)')
    parser.add_argument('--robot', default='unitree_g1', help='by name or as a path (default: unitree_g1)')
    parser.add_argument('--dtype', choices=('float32', 'bfloat16'), default='float32')
    parser.add_argument('--device', default='cpu', help='of torch (default: cpu)')
    parser.add_argument('--threads', type=int, default=1, metavar='T', help='of torch on the CPU (default: 1)')
    parser.add_argument('--mode', choices=MODES, default='continuous_batching')
    parser.add_argument('--action-rate', type=float, default=2.0, metavar='HZ', help='action chunks per second '
                                                                                     '(default: 2)')
    parser.add_argument('--camera-rate', type=float, default=10.0, metavar='HZ', help='pictures per second of each '
                                                                                      'camera (default: 10)')
    parser.add_argument('--size', type=int, nargs=2, default=(480, 640), metavar=('HEIGHT', 'WIDTH'),
                        help='of the pictures (default: 480 640)')
    parser.add_argument('--speech-rate', type=float, default=1.0, metavar='HZ', help='texts per second (default: 1)')
    parser.add_argument('--seconds', type=float, default=20.0, metavar='S', help='to measure (default: 20)')
    parser.add_argument('--json', type=Path, metavar='FILE', help='write the results to a file')


def main(arguments: argparse.Namespace) -> int:
    """Measure, print and write."""
    from oxygen_ros.bench.main import check_writable
    from oxygen_ros.demo.domain import free_domain
    from oxygen_ros.robot.robot_file import load_robot

    if arguments.json:
        check_writable(arguments.json)
    robot = load_robot(arguments.robot)
    os.environ.update(ROS_DOMAIN_ID=str(free_domain()), ROS_AUTOMATIC_DISCOVERY_RANGE='LOCALHOST')

    from oxygen_ros.nodes.bench_probe import BenchProbe  # ROS reads the environment when it is loaded

    with tempfile.TemporaryDirectory(prefix='oxygen_bench_') as folder:
        with BenchProbe(robot, arguments.camera_rate, tuple(arguments.size)) as probe:
            begin, end, cpu = _run(arguments, Path(folder), probe)
        ways = ways_of(probe.record, read_spans(Path(folder) / 'trace.json'), begin, end)
    if not ways:
        raise RosBenchFailed('no chunk could be followed from its pictures to its trajectory: give more --seconds or '
                             'a lower --action-rate')
    result = _result(arguments, ways, begin, end, cpu)
    print(report(result))
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=1) + '\n', encoding='utf-8')
    return 0


def _run(arguments: argparse.Namespace, folder: Path, probe: BenchProbe) -> tuple[float, float, dict[str, float]]:
    """Run the nodes; return when measuring began and ended, and the CPU seconds of each node in between."""
    from oxygen_ros.processes import ProcessGroup
    from oxygen_ros.up import command

    values = {argument.name: argument.default or '' for argument in suite_arguments()}
    runs = (NodeRun('perception', {'robot': arguments.robot, 'rate': 0.0}),
            NodeRun('inference', {
                'autostart': True, 'model': arguments.model, 'robot': arguments.robot, 'mode': arguments.mode,
                'checkpoint': arguments.checkpoint, 'dtype': arguments.dtype, 'device': arguments.device,
                'threads': arguments.threads, 'action.rate': arguments.action_rate,
                'speech.rate': arguments.speech_rate, 'memory.rate': 0.0, 'allow_random_weights': True,
                'trace_file': str(folder / 'trace.json'), 'memory.path': str(folder / 'memory.db')}))
    environment = {**os.environ, **dds_environment(), 'PYTHONUNBUFFERED': '1'}
    processes, record = {}, probe.record
    with ProcessGroup() as group:
        for run in runs:
            with open(folder / f'{run.name}.log', 'wb') as log:
                processes[run.name] = psutil.Process(
                    group.start(run.name, command(run, values), env=environment, stdout=log, stderr=log).pid)

        def wait(until: float, for_chunk: bool = False) -> None:
            while time.monotonic() < until and not (for_chunk and record.trajectories):
                if group.stop_requested:
                    raise KeyboardInterrupt
                probe.check()
                if group.ended:
                    end = group.ended[0]
                    last = (folder / f'{end.name}.log').read_text(errors='replace').strip().splitlines()[-1:]
                    raise RosBenchFailed(f'node {end.name} ended with exit code {end.code}: {" ".join(last)}')
                time.sleep(TICK)

        wait(time.monotonic() + SETUP_SECONDS, for_chunk=True)
        if not record.trajectories:
            raise RosBenchFailed(f'no trajectory came within {SETUP_SECONDS:.0f} s')
        begin = time.monotonic()
        before = {name: _cpu(process) for name, process in processes.items()}
        wait(begin + arguments.seconds)
        end = time.monotonic()
        return begin, end, {name: _cpu(process) - before[name] for name, process in processes.items()}


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def read_spans(path: Path) -> list[dict]:
    """Return the spans of a trace file of the engine; `start` and `end` in seconds of `time.monotonic`."""
    from oxygen_ros.engine.trace import read_trace

    return [{'name': event['name'], 'start': event['ts'] / 1e6, 'end': (event['ts'] + event['dur']) / 1e6,
             'frame': event['args'].get('frame')} for event in read_trace(path) if event['ph'] == 'X']


def ways_of(record: ProbeRecord, spans: Sequence[Mapping], begin: float, end: float) -> list[Way]:
    """
    Follow each chunk from its pictures to its trajectory, of those that were ready between two times.

    A trajectory tells no frame: it is the first one to come after its chunk was ready and before the next one was.
    """
    frames = {number: (stamp, time) for number, stamp, time in record.frames}
    prefills = {span['frame']: span for span in reversed(spans) if span['name'] == 'prefill'}
    chunks = sorted((span for span in spans if span['name'] == 'denoise'), key=lambda span: span['end'])
    arrivals = sorted(record.trajectories)
    ways = []
    for chunk, following in zip(chunks, [*chunks[1:], None]):
        number = chunk['frame']
        if not begin <= chunk['end'] < end or number not in frames or number not in prefills:
            continue
        stamp, received = frames[number]
        index = bisect_right(arrivals, chunk['end'])
        came = arrivals[index] if index < len(arrivals) else None
        if came is None or stamp not in record.sent or (following is not None and came > following['end']):
            continue
        prefill = prefills[number]
        model = prefill['end'] - prefill['start'] + chunk['end'] - chunk['start']
        ways.append(Way(received - record.sent[stamp], prefill['start'] - received, model,
                        chunk['start'] - prefill['end'], came - chunk['end']))
    return ways


def _result(arguments: argparse.Namespace, ways: Sequence[Way], begin: float, end: float, cpu: Mapping[str, float],
            ) -> dict:
    from oxygen_ros.bench.machine import machine, versions

    parts = ('total', 'suite', 'to_frame', 'waiting', 'model', 'between', 'to_command')
    config = {key: str(value) if isinstance(value, Path) else value for key, value in vars(arguments).items()}
    return {'schema': SCHEMA, 'machine': machine(arguments.device), 'versions': versions(), 'config': config,
            'seconds': end - begin, 'chunks': len(ways),
            'ways': {part: Figures.of([getattr(way, part) for way in ways]).as_json() for part in parts},
            'cpu_cores': {name: seconds / (end - begin) for name, seconds in cpu.items()}}


def report(result: dict) -> str:
    """Return the figures as a table."""
    from oxygen_ros.bench.table import rows

    names = {'total': 'pictures published -> trajectory received', 'suite': '  of it neither model nor waiting',
             'to_frame': '    pictures published -> frame received', 'between': '    engine, between the stages',
             'to_command': '    chunk ready -> trajectory received', 'model': '  model: prefill and denoising',
             'waiting': '  waiting for its turn, before the deadline'}
    table = [(text, [f'{1e3 * result["ways"][part][key]:.1f}' for key in ('p50', 'p99', 'max')])
             for part, text in names.items()]
    cores = ', '.join(f'{name} {share:.2f}' for name, share in result['cpu_cores'].items())
    return '\n'.join([rows(f'{result["chunks"]} chunks, ms', ['p50', 'p99', 'max'], table), f'CPU cores: {cores}'])
