"""`oxygen_ros offline BAG --output OUT`: a recording through the whole suite, in lockstep, without DDS and waiting."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import torch

from oxygen_ros.errors import ConfigError
from oxygen_ros.offline.lockstep import Lockstep
from oxygen_ros.offline.outputs import OfflineOutputs
from oxygen_ros.offline.picture import draw
from oxygen_ros.offline.report import NOTHING, build_report
from oxygen_ros.offline.settings import node_values, split_rules
from oxygen_ros.offline.virtual_time import StageCosts
from oxygen_ros.perception import inputs as perception
from oxygen_ros.replay.bag import Bag
from oxygen_ros.replay.bag_writer import BagWriter
from oxygen_ros.replay.player import Order, Scheduled, Timing
from oxygen_ros.replay.selection import parse_remaps
from oxygen_ros.tasks import parameters as inference

TABLES = {'inference': inference.PARAMETERS, 'perception': perception.PARAMETERS}
SHORT = {'model': 'model', 'checkpoint': 'checkpoint', 'robot': 'robot', 'seed': 'seed', 'instruction': 'instruction',
         'action_rate': 'action.rate', 'speech_rate': 'speech.rate', 'memory_rate': 'memory.rate'}
# What has no meaning here: names of files of the live node, and what belongs to its process.
IGNORED = ('memory.path', 'autostart', 'trace_file', 'dry_run', 'allow_random_weights', 'threads', 'input_timeout')
RESULTS = ('bag', 'report.json', 'timeline.png', 'memory.db', 'memory.db-wal', 'memory.db-shm', 'speed.json')


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `oxygen_ros offline`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = ('-p takes every parameter of the nodes perception and inference (oxygen_ros perception --help);\n'
                     'one that both have, such as robot, is set for both.')
    parser.add_argument('bag', metavar='BAG', help='folder of a recording, or an .mcap or .db3 file')
    parser.add_argument('--output', '-o', required=True, metavar='OUT',
                        help='folder for the results: bag/, report.json, timeline.png, memory.db, speed.json')
    parser.add_argument('--overwrite', action='store_true', help='replace the results of an earlier run in OUT')
    parser.add_argument('--params-file', action='append', default=[], metavar='FILE',
                        help='YAML file of parameters, as for the nodes (may be repeated)')
    parser.add_argument('-p', '--param', action='append', default=[], metavar='NAME:=VALUE',
                        help='set a parameter of perception or inference (may be repeated)')
    for option, parameter in SHORT.items():
        parser.add_argument(f'--{option.replace("_", "-")}', metavar=option.rpartition('_')[2].upper(),
                            help=f'short for -p {parameter}:=...')
    parser.add_argument('--stage-costs', default='zero', metavar='STAGE=MS,...',
                        help='virtual time of the stages prefill, denoise, extend, decode in ms, for example '
                             'prefill=40,denoise=30,extend=10,decode=8. Default: zero, work takes no time')
    parser.add_argument('--remap', nargs='+', default=[], metavar='OLD:=NEW', help='take topics in under other names')
    parser.add_argument('--start-offset', type=float, default=0.0, metavar='S', help='seconds to leave out')
    parser.add_argument('--duration', type=float, default=0.0, metavar='S', help='seconds to take; 0 is to the end')
    parser.add_argument('--order', choices=[order.value for order in Order], default=Order.RECEIVE.value,
                        help='messages come when they were recorded (receive, the default), or by header stamp')
    parser.add_argument('--with-inputs', action='store_true', help='copy what is taken in to the output bag')
    parser.add_argument('--with-frames', action='store_true', help='write the frames to the output bag (large)')
    parser.add_argument('--no-picture', action='store_true', help='draw no timeline.png')
    parser.add_argument('--threads', type=int, default=0, metavar='N', help='CPU threads of torch; 0 is half the cores')
    parser.add_argument('--json', action='store_true', help='print the result as JSON')


def main(arguments: argparse.Namespace) -> int:
    """Run it. Exit code 1 when fewer messages came out of the recording than it promised, or no frame was made."""
    rules = [*arguments.param, *(f'{parameter}:={value}' for option, parameter in SHORT.items()
                                 if (value := getattr(arguments, option)) is not None)]
    split = split_rules(rules, TABLES)
    values = {node: node_values(node, table, arguments.params_file, split[node]) for node, table in TABLES.items()}
    config = perception.read_inputs(values['perception'])
    settings = inference.session_settings(values['inference'])
    costs = StageCosts.parse(arguments.stage_costs)
    timing = Timing(start_offset=arguments.start_offset, duration=arguments.duration, restamp=True,
                    order=Order(arguments.order))
    _make_deterministic(arguments.threads, values['inference']['device'])
    began = time.perf_counter()
    with Bag(arguments.bag) as bag:
        if not bag.count:
            raise ConfigError(f'{arguments.bag!r} holds no messages')
        out = _check_output(Path(arguments.output).expanduser(), arguments.overwrite)
        with _new_results(out) as folder:
            memory_values = {**values['inference'], 'memory.path': str(folder / 'memory.db')}
            with BagWriter(folder / 'bag') as writer, closing(
                    inference.memory_keeper(memory_values, _note)) as memory:
                outputs = OfflineOutputs(writer, arguments.with_frames)
                copier = _Copier(writer) if arguments.with_inputs else None
                run = Lockstep(bag, timing, parse_remaps(arguments.remap), config, values['perception'],
                               values['inference'], settings, costs, outputs, memory,
                               copier or (lambda message: None))
                if copier:
                    copier.add(run)
                ready = time.perf_counter()
                run.run()
            seconds = time.perf_counter() - ready
            changed = {node: {name: value for name, value in values[node].items() if name not in IGNORED
                              and value != next(entry.default for entry in TABLES[node] if entry.name == name)}
                       for node in TABLES}
            report = build_report(run.player, run.inputs, run.session.spec, costs, outputs.records, changed,
                                  (run.start_ns, run.end_ns), run.skipped_ns)
            _write_json(folder / 'report.json', report, indent=1)
            virtual = report['virtual_time']['seconds'] - report['virtual_time']['pauses_skipped']
            speed = {'virtual_s': virtual, 'run_s': round(seconds, 3), 'load_s': round(ready - began, 3),
                     'times_real_time': round(virtual / seconds, 2)}
            _write_json(folder / 'speed.json', speed)
            picture = not arguments.no_picture and _draw(folder, run, outputs, Path(arguments.bag).name)
    _show(report, speed, out, picture, arguments.json)
    return 1 if report['missing'] or not report['frames']['made'] else 0


class _Copier:
    """Copies messages that are taken in to the output bag."""

    def __init__(self, writer: BagWriter) -> None:
        self._writer = writer

    def add(self, run: Lockstep) -> None:
        """Add the topics with the definitions that were recorded."""
        for topic in run.inputs.topics:
            text = (topic.definition, topic.type_hash) if topic.definition else None
            self._writer.add(topic.name, topic.type, topic.qos, text)

    def __call__(self, message: Scheduled) -> None:
        self._writer.write_serialized(message.topic, message.due_ns, message.data)


def _note(text: str) -> None:
    print('note:', text, file=sys.stderr)


def _make_deterministic(threads: int, device: str) -> None:
    torch.set_num_threads(threads or max(1, (os.cpu_count() or 2) // 2))
    if device.startswith('cuda'):
        os.environ.setdefault('CUBLAS_WORKSPACE_CONFIG', ':4096:8')
        torch.use_deterministic_algorithms(True, warn_only=True)


def _check_output(out: Path, overwrite: bool) -> Path:
    """Return the folder, made if need be, in which results may be put."""
    if out.is_file():
        raise ConfigError(f'output {str(out)!r} is a file: give a folder')
    there = [name for name in RESULTS if (out / name).exists()]
    if there and not overwrite:
        raise ConfigError(f'output {str(out)!r} holds results already ({", ".join(there)}): choose another folder or '
                          'say --overwrite')
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f'output {str(out)!r} cannot be written: {error.strerror}') from error
    return out


@contextmanager
def _new_results(out: Path) -> Iterator[Path]:
    """Give a folder for results, which take the place of earlier ones when all is done; else nothing is left of it."""
    try:
        folder = Path(tempfile.mkdtemp(prefix='.unfinished-', dir=out))
    except OSError as error:
        raise ConfigError(f'output {str(out)!r} cannot be written: {error.strerror}') from error
    try:
        yield folder
        _remove_results(out)
        for path in folder.iterdir():
            path.rename(out / path.name)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write_json(path: Path, content: object, indent: int | None = None) -> None:
    path.write_text(json.dumps(content, indent=indent, ensure_ascii=False) + '\n', encoding='utf-8')


def _remove_results(out: Path) -> None:
    for name in RESULTS:
        path = out / name
        for file in path.iterdir() if path.is_dir() else [path]:
            if file.name.endswith(('.mcap', '.yaml')) or not path.is_dir():
                file.unlink(missing_ok=True)
        if path.is_dir():
            path.rmdir()


def _draw(out: Path, run: Lockstep, outputs: OfflineOutputs, title: str) -> bool:
    try:
        draw(out / 'timeline.png', outputs.records, run.session.spec, title, run.start_ns, run.end_ns)
    except ModuleNotFoundError as error:
        print(f'note: no timeline.png, Python package {error.name!r} is missing (pip install {error.name})',
              file=sys.stderr)
        return False
    return True


def _show(report: dict[str, Any], speed: dict[str, Any], out: Path, picture: bool, as_json: bool) -> None:
    if as_json:
        print(json.dumps({**report, 'speed': speed}, ensure_ascii=False))
        return
    actions, texts = report['actions'], report['texts']
    print(f'{speed["virtual_s"]:.2f} s of recording in {speed["run_s"]:.2f} s: {speed["times_real_time"]:.1f} times '
          f'real time (after {speed["load_s"]:.1f} s of loading)')
    print(f'{report["frames"]["made"]} frames, {actions["chunks"]} action chunks ({actions["late"]} late, '
          f'{sum(actions["skipped"].values())} skipped), {report["commands"]["count"]} commands')
    ended = '; '.join(f'{task}: ' + ', '.join(f'{number} {name}' for name, number in reasons.items())
                      for task, reasons in texts['ended'].items())
    print(f'{len(texts["all"])} texts with {texts["tokens"]} tokens ({ended}), {len(report["memory"])} memory entries')
    for reason, number in [*actions['skipped'].items(), *report['frames']['refused_by_inference'].items()]:
        print(f'note: {number} times: {reason}')
    for note in report['notes']:
        print('note:', note)
    if report['model']['random_weights']:
        print('note:', NOTHING)
    for line in report['missing']:
        print('error:', line, file=sys.stderr)
    if not report['frames']['made']:
        events = {name: {event: number for event, number in counts.items() if event != 'received'}
                  for name, counts in report['inputs']['events'].items()}
        print(f'error: no frame was made: {json.dumps(events)}', file=sys.stderr)
    print(f'results in {out}: bag, report.json, speed.json, memory.db' + (', timeline.png' if picture else ''))
