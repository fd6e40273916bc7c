"""The faults of a soak run. Each begins when its context is entered, and ends with it."""

from __future__ import annotations

import contextlib
import functools
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from oxygen_ros.soak.faults import STAGES, ModelFault

if TYPE_CHECKING:
    from oxygen_ros.nodes.soak import Soak

QUESTION = 'what do you see? '


@contextlib.contextmanager
def flag(name: str, value: bool, soak: Soak) -> Iterator[None]:
    """Set a flag of the sensors."""
    setattr(soak.robot, name, value)
    yield
    setattr(soak.robot, name, not value)


@contextlib.contextmanager
def model(fault: ModelFault, most: int, soak: Soak) -> Iterator[None]:
    """Have some calls of a stage of the model go wrong."""
    soak.node.faulty.inject(soak.random.choice(STAGES), fault, soak.random.randint(1, most))
    yield


@contextlib.contextmanager
def hang(soak: Soak) -> Iterator[None]:
    """Have a call of the model not return until the watchdog has noticed."""
    worker, hanging = soak.node.worker, soak.node.faulty
    hanging.inject(soak.random.choice(('prefill', 'denoise')), ModelFault.HANGS)
    yield
    if not soak.wait(lambda: soak.node.worker is not worker, 30):
        soak.report.broken.append('nobody noticed that the engine hangs')
    hanging.release()


@contextlib.contextmanager
def killed_perception(soak: Soak) -> Iterator[None]:
    """End a DDS peer without any farewell."""
    soak.perception.send_signal(signal.SIGKILL)
    soak.perception.wait()
    yield


@contextlib.contextmanager
def full_disk(soak: Soak) -> Iterator[None]:
    """Let the database of the memory grow no more."""
    store = soak.node.memory and soak.node.memory._store
    if not store:
        yield
        return
    connection = store._connection
    with store._lock:
        pages = connection.execute('PRAGMA page_count').fetchone()[0]
        connection.execute(f'PRAGMA max_page_count = {pages}')
    yield
    with store._lock, contextlib.suppress(sqlite3.ProgrammingError):  # closed in between
        connection.execute('PRAGMA max_page_count = 1000000')


@contextlib.contextmanager
def in_node(work: Callable[[Soak], object], soak: Soak) -> Iterator[None]:
    """Do something in the thread of the inference node."""
    soak.in_node(lambda: work(soak))
    yield


@contextlib.contextmanager
def flood(soak: Soak) -> Iterator[None]:
    """Ask more than can be answered, and what no prompt can hold."""
    for _ in range(30):
        soak.robot.ask(QUESTION * soak.random.choice((1, 1, 200)), 5.0)
    yield


FAULTS: dict[str, Callable[[Soak], AbstractContextManager[None]]] = {
    'camera_stops': functools.partial(flag, 'camera', False),
    'joint_states_stop': functools.partial(flag, 'joints', False),
    'joint_states_nan': functools.partial(flag, 'nan_joints', True),
    'pictures_broken': functools.partial(flag, 'broken_pictures', True),
    'model_raises': functools.partial(model, ModelFault.RAISES, 8),
    'model_out_of_memory': functools.partial(model, ModelFault.OUT_OF_MEMORY, 3),
    'model_nan': functools.partial(model, ModelFault.NAN, 8),
    'model_slow': functools.partial(model, ModelFault.SLOW, 3),
    'model_hangs': hang,
    'worker_dies': functools.partial(model, ModelFault.DIES, 1),
    'perception_killed': killed_perception,
    'disk_full': full_disk,
    'clock_jumps': functools.partial(in_node, lambda soak: soak.node.clock_watch._note_jump(-5.0)),
    'deactivated': functools.partial(in_node, lambda soak: soak.deactivate()),
    'cleaned_up': functools.partial(in_node, lambda soak: soak.clean_up()),
    'questions_flood': flood,
}
