"""`oxygen_ros compare A B`: whether two runs did the same, as a regression test of a checkpoint or a setting."""

from __future__ import annotations

import argparse
import json

from oxygen_ros.compare.comparison import Actions, Comparison, Timing, Tolerances, Words, compare
from oxygen_ros.compare.outputs import Outputs, read_outputs
from oxygen_ros.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `oxygen_ros compare`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = 'Exit code: 0 equal within the tolerances, 1 different, 2 wrong use or unreadable.'
    for name in ('a', 'b'):
        parser.add_argument(name, metavar=name.upper(), help='output of `oxygen_ros offline`, or any recording')
    parser.add_argument('--action-max', type=float, default=0.0, metavar='RAD',
                        help='largest difference of a joint that is allowed (0)')
    parser.add_argument('--action-mean', type=float, metavar='RAD',
                        help='largest mean difference of a joint that is allowed (as --action-max)')
    parser.add_argument('--unmatched', type=float, default=0.0, metavar='PART',
                        help='part of the chunks and commands that only one side may have, 0 to 1 (0)')
    parser.add_argument('--texts', type=float, default=0.0, metavar='PART',
                        help='part of the texts of a task that may differ, 0 to 1 (0)')
    parser.add_argument('--memory', type=float, default=0.0, metavar='PART',
                        help='part of the memory notes that may differ, 0 to 1 (0)')
    parser.add_argument('--timing', type=float, metavar='S',
                        help='largest difference in the times of the same chunks and texts; without it timing is shown '
                             'and not judged')
    for name in ('a', 'b'):
        parser.add_argument(f'--commands-{name}', default='', metavar='TOPIC',
                            help=f'topic of {name.upper()} to take as commands, joint states or trajectories, such as '
                                 'what a person commanded')
    parser.add_argument('--align', choices=('stamps', 'start'), default='stamps',
                        help='stamps: both were made from one recording (default); start: let both begin at once')
    parser.add_argument('--json', action='store_true', help='print the result as JSON')


def main(arguments: argparse.Namespace) -> int:
    """Compare, show, and return the exit code."""
    mean = arguments.action_max if arguments.action_mean is None else arguments.action_mean
    tolerances = Tolerances(arguments.action_max, mean, arguments.unmatched, arguments.texts, arguments.memory,
                            arguments.timing)
    for name, value in vars(tolerances).items():
        if value is not None and not value >= 0:
            raise ConfigError(f'tolerance {name} is {value}: it must be a number that is not negative')
    a, b = read_outputs(arguments.a, arguments.commands_a), read_outputs(arguments.b, arguments.commands_b)
    shift_ns = _begin(a) - _begin(b) if arguments.align == 'start' else 0
    result = compare(a, b, tolerances, shift_ns)
    print(json.dumps(result.as_dict(), ensure_ascii=False) if arguments.json else _table(result))
    return 0 if result.equal else 1


def _begin(outputs: Outputs) -> int:
    """Return the stamp of the first frame or command that there is."""
    stamps = [chunk.stamp_ns for chunk in outputs.chunks[:1]] or [int(time) for time in outputs.command_times[:1]]
    stamps = stamps or [text.stamp_ns for text in outputs.texts[:1]] or [note[0] for note in outputs.notes[:1]]
    return stamps[0] if stamps else 0


def _table(result: Comparison) -> str:
    lines = [f'A: {result.a}', f'B: {result.b}']
    for actions in result.actions:
        lines += ['', *_actions(actions)]
    lines += ['', f'{"":20}{"same":>8}{"differ":>8}{"only A":>8}{"only B":>8}']
    for name, words in [*((f'texts, {task}', words) for task, words in result.texts.items()),
                        ('memory', result.notes)]:
        lines += _words(name, words)
    lines += ['', _times('chunks', result.chunk_timing), _times('texts', result.text_timing), '']
    lines += [f'different: {verdict}' for verdict in result.verdicts] or ['equal within the tolerances']
    return '\n'.join(lines)


def _actions(actions: Actions) -> list[str]:
    rows = [f'{name:34}{joint.largest:>12.6f}{joint.mean:>12.6f}' for name, joint in actions.joints.items()]
    return [f'{actions.basis}: {actions.matched} compared, {actions.only_a} only in A, {actions.only_b} only in B',
            f'{"joint":34}{"max, rad":>12}{"mean, rad":>12}', *rows]


def _words(name: str, words: Words) -> list[str]:
    rows = [f'{name:20}{words.same:>8}{words.different:>8}{words.only_a:>8}{words.only_b:>8}']
    for example in words.examples:
        rows += [f'    {example["stamp_ns"]}  A: {example["a"]!r}', f'    {"":>{len(str(example["stamp_ns"]))}}  B: '
                 f'{example["b"]!r}']
    return rows


def _times(name: str, timing: Timing) -> str:
    if not timing.compared:
        return f'timing of {name}: nothing to compare'
    return (f'timing of {name}: B - A up to {timing.largest:+.4f} s, mean {timing.mean:+.4f} s '
            f'({timing.compared} compared)')
