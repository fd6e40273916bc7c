"""A node of a program that is no node itself: it spins in a thread of its own while the program does other things."""

from __future__ import annotations

import threading
from typing import TypeVar

import rclpy
from rclpy.executors import ExternalShutdownException, ShutdownException, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

JOIN_SECONDS = 2.0
T = TypeVar('T', bound='BackgroundNode')  # typing.Self needs Python 3.11


class BackgroundNode:
    """
    While entered, a node of that name spins in a thread; a subclass makes its publishers and subscriptions in `_open`.

    :param name: of the node. :param thread: name of the thread.
    """

    def __init__(self, name: str, thread: str) -> None:
        self._name, self._thread_name = name, thread
        self._failure: BaseException | None = None

    def _open(self, node: Node) -> None:
        """Make what the node consists of; called before it spins."""
        raise NotImplementedError

    def __enter__(self: T) -> T:
        # The signals stay with the process group, the ROS arguments with the nodes.
        rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
        self._node = Node(self._name)
        self._open(self._node)
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self._node)
        self._thread = threading.Thread(target=self._spin, name=self._thread_name, daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(timeout_sec=JOIN_SECONDS)
        self._thread.join(timeout=JOIN_SECONDS)
        self._node.destroy_node()
        rclpy.try_shutdown()

    def check(self) -> None:
        """Raise what a callback raised: a mistake of this program."""
        if self._failure is not None:
            raise self._failure

    def _spin(self) -> None:
        try:
            self._executor.spin()
        except (ExternalShutdownException, ShutdownException):
            pass
        except BaseException as failure:  # handed to the main thread
            self._failure = failure
