"""Brings work from other threads into the executor's thread."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future as ThreadFuture
from typing import Any

from rclpy.node import Node
from rclpy.task import Future

from oxygen_ros.errors import OxygenError


class Mailbox:
    """
    Runs callables in the executor thread of a node, in the order in which they were put.

    Threads: `put` and `awaitable` from any thread, the callables run in the executor's.
    """

    def __init__(self, node: Node) -> None:
        self._node = node
        self._items: deque[Callable[[], None]] = deque()
        self._guard = node.create_guard_condition(self.drain)

    def put(self, item: Callable[[], None]) -> None:
        """Have a callable run soon."""
        self._items.append(item)
        self._guard.trigger()

    def awaitable(self, future: ThreadFuture) -> Future:
        """Return a future that a service callback can await: a pair (result, error), of which one is None."""
        result = Future(executor=self._node.executor)

        def done(finished: ThreadFuture) -> None:
            self.put(lambda: result.set_result(_outcome(finished)))

        future.add_done_callback(done)
        return result

    def drain(self) -> None:
        """
        Run what waits now; only in the executor's thread.

        An item may call this again, as a transition does that it makes: what waited then has run already.
        """
        for _ in range(len(self._items)):
            if not self._items:
                return
            self._items.popleft()()


def _outcome(future: ThreadFuture) -> tuple[Any, BaseException | None]:
    if future.cancelled():
        return None, OxygenError('the engine ended before it came to this; /diagnostics says why')
    error = future.exception()
    return (None, error) if error is not None else (future.result(), None)
