"""
Runs one node as a process: arguments, signals, one-line errors, orderly end.

Threads: the executor spins in a thread of its own; the main thread only waits, because a wait in Python can be
interrupted by a signal and a wait inside rclpy cannot. On SIGINT and SIGTERM the executor's thread ends first, then the
node is destroyed while its context is still valid (so it can publish last messages), then the context is shut down.
"""

from __future__ import annotations

import argparse
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import rclpy
from rclpy.exceptions import NameValidationException
from rclpy.executors import ExternalShutdownException, ShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from oxygen_ros.errors import ConfigError, OxygenError
from oxygen_ros.nodes.parameters import NodeParameter, override_rule, parameter_help

JOIN_SECONDS = 1.5
SAME_WISH_SECONDS = 1.0
LOG_LEVELS = ('debug', 'info', 'warn', 'error', 'fatal')


class NodeFinished(Exception):
    """A callback of a node raises this to end the process in an orderly way, with an exit code."""

    def __init__(self, exit_code: int = 0):
        super().__init__(exit_code)
        self.exit_code = exit_code


def add_node_arguments(parser: argparse.ArgumentParser, parameters: Sequence[NodeParameter]) -> None:
    """Add the arguments that every node command has, and the list of its parameters to `--help`."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = parameter_help(parameters)
    parser.set_defaults(node_parameters=tuple(parameters))
    parser.add_argument('-p', '--param', action='append', default=[], metavar='NAME:=VALUE',
                        help='set a parameter (may be repeated)')
    parser.add_argument('--params-file', action='append', default=[], metavar='FILE',
                        help='YAML file of parameters (may be repeated)')
    parser.add_argument('--namespace', metavar='NAME', help='namespace of the node and of its relative topics')
    parser.add_argument('--use-sim-time', action='store_true', help='take the time from /clock')
    parser.add_argument('--log-level', choices=LOG_LEVELS, help='least severe messages to log')
    parser.add_argument('--ros-args', nargs=argparse.REMAINDER, default=[], metavar='...',
                        help='everything behind it goes to ROS as it is, for example -r frames:=/head/frames')


def ros_arguments(arguments: argparse.Namespace) -> list[str]:
    """
    Return the argument list for `rclpy.init`.

    :raises ConfigError: a parameter is unknown or does not fit, or a parameter file does not exist.
    """
    table = arguments.node_parameters
    ros = ['--ros-args']
    for path in arguments.params_file:
        if not Path(path).is_file():
            raise ConfigError(f'parameter file {path!r} does not exist')
        ros += ['--params-file', path]
    if arguments.use_sim_time:
        ros += ['-p', 'use_sim_time:=true']
    for text in arguments.param:
        ros += ['-p', override_rule(text, table)]
    if arguments.namespace:
        ros += ['-r', '__ns:=/' + arguments.namespace.strip('/')]
    if arguments.log_level:
        ros += ['--log-level', arguments.log_level]
    given = list(arguments.ros_args)
    for index, word in enumerate(given[1:], start=1):
        # A rule without a node name is meant for this node: an unknown name is a mistake here too.
        if given[index - 1] in ('-p', '--param') and ':' not in word.partition(':=')[0]:
            given[index] = override_rule(word, table)
    return ros + given


def run_node(factory: Callable[[], Node], arguments: argparse.Namespace) -> int:
    """
    Make the node, spin it until it ends, a signal comes or the context is shut down, and return the exit code.

    0: orderly end, also by SIGINT or SIGTERM; 2: wrong use (one line on stderr). What a callback raises otherwise is a
    mistake of the program and comes out as it is.

    :param factory: makes the node; called after `rclpy.init`.
    :param arguments: from a parser with `add_node_arguments`.
    """
    try:
        with _StopSignals() as signals:
            try:
                _init(ros_arguments(arguments))
                _spin(factory(), signals)
                return 0
            finally:
                rclpy.try_shutdown()
    except KeyboardInterrupt:  # while the node was being made
        return 0
    except NodeFinished as end:
        return end.exit_code
    except (OxygenError, NameValidationException) as error:
        print('error:', ' '.join(str(error).split()), file=sys.stderr)
        return 2


def _init(words: list[str]) -> None:
    """Initialise rclpy without its signal handlers, which would end the context before the node."""
    try:
        rclpy.init(args=words, signal_handler_options=SignalHandlerOptions.NO)
    except RuntimeError as error:  # rcl cannot read the arguments or a parameter file
        raise ConfigError(f'ROS refuses its arguments: {error}') from error


def _spin(node: Node, signals: _StopSignals) -> None:
    """Spin the node in a thread until a stop signal comes or spinning ends by itself. Raises what a callback raised."""
    executor = SingleThreadedExecutor()
    executor.add_node(node)
    ending = threading.Event()
    failures: list[BaseException] = []

    def spin() -> None:
        try:
            while not ending.is_set() and node.context.ok():
                executor.spin_once()
        except (ExternalShutdownException, ShutdownException):
            pass
        except BaseException as failure:  # handed to the main thread
            failures.append(failure)
        finally:
            signals.wake()

    thread = threading.Thread(target=spin, name='executor', daemon=True)
    thread.start()
    signals.wait()
    # Executor.shutdown takes away what a spinning thread still uses: that thread ends first.
    ending.set()
    executor.wake()
    thread.join(timeout=JOIN_SECONDS)
    executor.shutdown(timeout_sec=0)
    node.destroy_node()
    if thread.is_alive():  # in a long callback, such as one that loads a model
        # The interpreter would cut the thread off in the middle of C++ code, which aborts the process.
        rclpy.try_shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    if failures:
        raise failures[0]


class _StopSignals:
    """
    While entered: SIGINT and SIGTERM end `wait`, or raise KeyboardInterrupt if nothing waits yet.

    A signal that comes again within a second is the same wish (Ctrl-C reaches the whole group of a terminal, and a
    launcher passes it on as well) and is ignored; a later one meets the default action and ends the process at once.
    When the node has ended by a signal, further ones are ignored: only the interpreter has yet to end.
    Python allows handlers only in the main thread; in another one (a test that runs a node in a thread) none is
    installed.
    """

    def __init__(self) -> None:
        self._wakes: queue.SimpleQueue[None] = queue.SimpleQueue()  # put() is safe inside a signal handler
        self._waiting = False
        self._since: dict[int, float] = {}  # signal number -> time of the first one
        self._previous: dict[int, object] = {}

    def __enter__(self) -> _StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            # Obeyed already: a launcher that is impatient with the end of the interpreter gets the exit code 0 as well.
            signal.signal(number, signal.SIG_IGN if self._since else handler)

    def wake(self) -> None:
        """End `wait`; any thread may call it."""
        self._wakes.put(None)

    def wait(self) -> None:
        """Block until `wake` or a signal."""
        self._waiting = True
        self._wakes.get()

    def _handle(self, number: int, _: object) -> None:
        if number in self._since:
            if time.monotonic() > self._since[number] + SAME_WISH_SECONDS:
                signal.signal(number, signal.SIG_DFL)
                signal.raise_signal(number)
            return
        self._since[number] = time.monotonic()
        self.wake()
        if not self._waiting:
            raise KeyboardInterrupt
