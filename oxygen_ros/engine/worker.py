"""
The one thread that owns the engine. Everybody else talks to it through an inbox and an outbox.

Who may call what: `post`, `call`, `start` and `stop` from any thread. The engine itself is touched by the worker thread
only, between `start` and `stop`. `emit`, the outbox, is called in the worker thread: it must not block.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from oxygen_ros.engine import garbage
from oxygen_ros.engine.engine import Engine

logger = logging.getLogger(__name__)

Command = Callable[[Engine], object]

LONGEST_SLEEP = 60.0  # seconds; threads refuse to wait for times that are out of their range


@dataclass(frozen=True)
class WorkerFailed:
    """The engine raised; the worker thread has ended."""

    error: BaseException


class Worker:
    """
    Runs an engine in a thread of its own.

    :param emit: called with `WorkerFailed` when the engine raises. (The engine has its own `emit` for its events.)
    """

    def __init__(self, engine: Engine, emit: Callable[[WorkerFailed], None]) -> None:
        self._engine, self._emit = engine, emit
        self._inbox: deque[tuple[Command, Future[Any] | None]] = deque()
        self._arrived = threading.Condition()
        self._stopping = False
        self._busy_since: float | None = None  # the last sign of life of a thread that has work
        self._thread = threading.Thread(target=self._run, name='engine', daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def silence(self) -> float:
        """Seconds for which one call into the engine has lasted by now; 0 while there is nothing to do."""
        since = self._busy_since
        return 0.0 if since is None else time.monotonic() - since

    def post(self, command: Command) -> None:
        """Have a command run with the engine, before the next decode step at the latest. An error ends the worker."""
        self._put(command, None)

    def call(self, command: Command) -> Future[Any]:
        """Like `post`, and return a future of the command's result or error."""
        future: Future[Any] = Future()
        self._put(command, future)
        return future

    def stop(self, timeout: float = 5.0) -> bool:
        """End after the stage in progress; commands not yet run are cancelled. Return whether the thread has ended."""
        with self._arrived:
            self._stopping = True
            self._arrived.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        self._cancel_rest()
        return not self._thread.is_alive()

    def _put(self, command: Command, future: Future[Any] | None) -> None:
        with self._arrived:
            if self._stopping:
                if future is not None:
                    future.cancel()
                return
            self._inbox.append((command, future))
            self._arrived.notify()

    def _run(self) -> None:
        garbage.set_apart()
        try:
            while not self._stopping:
                self._drain()
                self._busy_since = time.monotonic()
                wait_until = self._engine.run_cycle(self._poll)
                if wait_until is not None:
                    self._sleep(wait_until)
        except BaseException as error:  # noqa: B902 - the node must hear of anything that ends this thread
            logger.exception('the engine failed')
            with self._arrived:
                self._stopping = True
            self._cancel_rest()
            self._emit(WorkerFailed(error))
        finally:
            self._busy_since = None
            garbage.put_back()

    def _poll(self) -> bool:
        """Between decode steps: run what has arrived; say whether to plan anew."""
        self._busy_since = time.monotonic()
        if not self._inbox:
            return self._stopping
        self._drain()
        return True

    def _drain(self) -> None:
        while not self._stopping and (item := self._next()) is not None:
            command, future = item
            self._busy_since = time.monotonic()
            if future is None:
                command(self._engine)
            elif future.set_running_or_notify_cancel():
                try:
                    future.set_result(command(self._engine))
                except Exception as error:  # noqa: B902 - it belongs to the caller
                    future.set_exception(error)

    def _sleep(self, until: float) -> None:
        self._busy_since = None
        with self._arrived:
            if not self._inbox and not self._stopping:
                self._arrived.wait(min(max(0.0, until - self._engine.clock()), LONGEST_SLEEP))

    def _next(self) -> tuple[Command, Future[Any] | None] | None:
        with self._arrived:
            return self._inbox.popleft() if self._inbox else None

    def _cancel_rest(self) -> None:
        while (item := self._next()) is not None:
            if item[1] is not None:
                item[1].cancel()
