"""
Command line: `oxygen_ros SUBCOMMAND ...`.

Each subcommand is a module with `add_arguments(parser)` and `main(arguments) -> int`, which is imported only when it is
asked for: `oxygen_ros replay --help` needs no torch. Exit codes: 0; 1 the check failed; 2 wrong use; 130 Ctrl-C.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import os
import sys
from collections.abc import Sequence
from types import ModuleType

from oxygen_ros.errors import OxygenError
from oxygen_ros.version import version

WRONG_USE = 2
INTERRUPTED = 130  # what a shell gives for a process that SIGINT ended

# Name -> (module, one-line help).
SUBCOMMANDS = {
    'demo': ('oxygen_ros.demo.main', 'run all nodes on a simulated robot that is told and asked things, or on a bag'),
    'up': ('oxygen_ros.up', 'start perception and inference, and replay with --bag (as the launch files do)'),
    'verify': ('oxygen_ros.verify.main', 'compare a model with golden vectors, through the engine and its cache'),
    'dataset': ('oxygen_ros.simulation.generate', 'make training frames in the simulator'),
    'evaluate': ('oxygen_ros.evaluation.main', 'tell how good the small policy is, in the simulator'),
    'train': ('oxygen_ros.training.main', 'train the small policy on frames of the simulator'),
    'bench': ('oxygen_ros.bench.main', 'measure the modes of the engine against each other, and the nodes'),
    'bench-perception': ('oxygen_ros.nodes.perception_bench', 'measure the perception node'),
    'replay': ('oxygen_ros.nodes.replay', 'play a rosbag2 recording onto its topics'),
    'offline': ('oxygen_ros.offline.main', 'run a recording through perception and inference in lockstep, without ROS'),
    'compare': ('oxygen_ros.compare.main', 'compare the actions, texts and memory in two recordings'),
    'record': ('oxygen_ros.nodes.record', 'record topics, on machines without rosbag2'),
    'soak': ('oxygen_ros.nodes.soak', 'run the whole suite with faults at random, and tell what did not stay true'),
    'top': ('oxygen_ros.nodes.top', 'show a running suite live in the terminal'),
    'simulate': ('oxygen_ros.nodes.simulator', 'run the simulator node: a two-armed humanoid at a table'),
    'hear': ('oxygen_ros.nodes.hear', 'run the node that understands spoken instructions and questions (optional)'),
    'speak': ('oxygen_ros.nodes.speak', 'run the node that says texts with a voice (optional)'),
    'perception': ('oxygen_ros.nodes.perception', 'run the node that makes frames of camera images and joint states'),
    'inference': ('oxygen_ros.nodes.inference', 'run the node that acts, speaks and remembers'),
}

ROS_MODULES = ('rclpy', 'rcl_interfaces', 'builtin_interfaces', 'rosgraph_msgs', 'oxygen_ros.msg', 'oxygen_ros.srv')


def main(words: Sequence[str] | None = None) -> int:
    """
    Run a subcommand and return its exit code. Wrong words exit like argparse does.

    :param words: the command line without the program's name; None takes that of the process.
    """
    words = sys.argv[1:] if words is None else list(words)
    try:
        return _run(words)
    except OxygenError as error:
        return _wrong_use(str(error))
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except ModuleNotFoundError as error:
        if not error.name or (error.name.startswith('oxygen_ros') and error.name not in ROS_MODULES):
            raise
        return _wrong_use(_missing(error.name))


def _run(words: Sequence[str]) -> int:
    parser = _parser()
    if not words or words[0].startswith('-'):
        parser.parse_args(words)  # ends the process for --help and --version
        parser.error('a subcommand is needed')
    name, *rest = words
    if name not in SUBCOMMANDS:
        near = difflib.get_close_matches(name, SUBCOMMANDS, n=1)
        hint = f'did you mean {near[0]!r}?' if near else f'choose one of {", ".join(SUBCOMMANDS)}'
        return _wrong_use(f'unknown subcommand {name!r}: {hint}')
    module_name, summary = SUBCOMMANDS[name]
    module = importlib.import_module(module_name)
    return module.main(_subparser(name, summary, module).parse_args(rest))


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the words before a subcommand."""
    width = max(map(len, SUBCOMMANDS))
    parser = argparse.ArgumentParser(
        prog='oxygen_ros', usage='oxygen_ros SUBCOMMAND ...', formatter_class=argparse.RawDescriptionHelpFormatter,
        description='A vision-language-action model that acts, speaks and remembers at the same time, on ROS 2.',
        epilog='\n'.join(['subcommands (each has --help):',
                          *(f'  {name:{width}}  {summary}' for name, (_, summary) in SUBCOMMANDS.items())]))
    parser.add_argument('--version', action='version', version=f'oxygen_ros {version()}')
    return parser


def _subparser(name: str, summary: str, module: ModuleType) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f'oxygen_ros {name}', description=summary[0].upper() + summary[1:] + '.')
    module.add_arguments(parser)
    return parser


def _missing(name: str) -> str:
    """Say what to do about a Python package that is not installed."""
    if name in ROS_MODULES or name.endswith(('_msgs', '_srvs')):
        return (f'Python package {name!r} is missing: source the setup file of ROS 2 and of the workspace, '
                'or use the environment of `make setup` (.venv/bin/oxygen_ros)')
    return f'Python package {name!r} is missing: install it with pip, see README.md'


def _wrong_use(text: str) -> int:
    """Print one line and return the exit code for wrong use."""
    print('error:', ' '.join(text.split()), file=sys.stderr)
    return WRONG_USE
