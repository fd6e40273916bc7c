"""`oxygen_ros top`: a live view of a running suite in the terminal, from its topics. It asks nothing of the nodes."""

from __future__ import annotations

import argparse
import functools
import time

import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.qos import QoSProfile, ReliabilityPolicy
from sensor_msgs.msg import JointState
from trajectory_msgs.msg import JointTrajectory

from oxygen_ros.msg import EngineStatus, MemoryEntry, TextChunk


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `oxygen_ros top`."""
    parser.add_argument('--namespace', default='', metavar='NAME', help='namespace of the suite')
    parser.add_argument('--seconds', type=float, metavar='N', help='end after so long, and leave the last picture; '
                                                                   'without it: until Ctrl-C')


def main(arguments: argparse.Namespace) -> int:
    """Show the suite until Ctrl-C."""
    from rich.live import Live

    from oxygen_ros.nodes.top_screen import TopScreen
    context = rclpy.Context()
    rclpy.init(context=context)
    node = rclpy.create_node('top', namespace=arguments.namespace, context=context)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)
    screen = TopScreen(time.monotonic())
    any_publisher = QoSProfile(depth=50, reliability=ReliabilityPolicy.BEST_EFFORT)
    listen = functools.partial(node.create_subscription, qos_profile=any_publisher)
    listen(EngineStatus, 'status', lambda message: screen.status(message, time.monotonic()))
    listen(DiagnosticArray, '/diagnostics', lambda message: screen.diagnostics(message, time.monotonic()))
    listen(TextChunk, 'speech', screen.text)
    listen(MemoryEntry, 'memory', screen.memory)
    # As bytes: only when they came is of interest, and they come often.
    listen(JointState, 'joint_commands', lambda _: screen.command(time.monotonic()), raw=True)
    listen(JointTrajectory, 'joint_trajectory', lambda _: screen.chunk(time.monotonic()), raw=True)
    ends = None if arguments.seconds is None else time.monotonic() + arguments.seconds
    drawn = 0.0
    try:
        with Live(screen.render(time.monotonic()), auto_refresh=False, screen=ends is None) as live:
            while ends is None or time.monotonic() < ends:
                executor.spin_once(timeout_sec=0.1)
                if time.monotonic() - drawn > 0.25:
                    drawn = time.monotonic()
                    live.update(screen.render(drawn), refresh=True)
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        executor.shutdown(timeout_sec=0)
        node.destroy_node()
        context.try_shutdown()
    return 0
