"""Fixtures for tests that talk over DDS: a ROS domain of one's own, and a graph with processes in it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest


@contextlib.contextmanager
def claimed_domain():
    """Claim a ROS domain that no other test process on this machine uses at the same time."""
    for offset in range(90):  # from a place of our own, because not every user of a domain claims it here
        domain = 10 + (os.getpid() + offset) % 90
        path = Path(tempfile.gettempdir()) / f'oxygen_ros_test_domain_{os.getuid()}_{domain}.lock'
        with open(path, 'w') as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            yield domain
            return
    raise RuntimeError('all ROS domains from 10 to 99 are claimed by running tests')


@pytest.fixture
def ros_domain(monkeypatch):
    """Give this test, and processes that it starts, a ROS domain on this machine only. Returns its number."""
    with claimed_domain() as domain:
        monkeypatch.setenv('ROS_DOMAIN_ID', str(domain))
        monkeypatch.setenv('ROS_AUTOMATIC_DISCOVERY_RANGE', 'LOCALHOST')
        yield domain


@pytest.fixture(scope='session')
def renders():
    """Skip tests that need pictures of the simulator where it cannot make them, and say why."""
    pytest.importorskip('mujoco', reason='the optional part simulation is not installed')
    pytest.importorskip('openarm_mujoco', reason='the optional part simulation is not installed')
    from oxygen_ros.errors import ConfigError
    from oxygen_ros.simulation.renderer import choose_backend
    try:
        choose_backend()
    except ConfigError as error:
        pytest.skip(str(error))


class RosGraph:
    """A node of the test and the processes that it talks to."""

    def __init__(self, domain: int):
        import rclpy
        from rclpy.executors import SingleThreadedExecutor
        self.context = rclpy.Context()
        rclpy.init(context=self.context, domain_id=domain)
        self.node = rclpy.create_node('test', context=self.context)
        self._executor = SingleThreadedExecutor(context=self.context)
        self._executor.add_node(self.node)
        self._nodes = [self.node]
        self._processes: list[subprocess.Popen] = []

    def add(self, node_type: type, namespace: str | None = None, **parameters):
        """Make a node of the suite in this process; it spins along with the test."""
        from rclpy.parameter import Parameter
        node = node_type(context=self.context, namespace=namespace, parameter_overrides=[
            Parameter(name, value=value) for name, value in parameters.items()])
        self._executor.add_node(node)
        self._nodes.append(node)
        return node

    def remove(self, node) -> None:
        """Destroy a node of the suite that was made here."""
        self._executor.remove_node(node)
        self._nodes.remove(node)
        node.destroy_node()

    def listen(self, message_type: type, topic: str, qos=10) -> list:
        """Return a list that grows by every message that comes."""
        received: list = []
        self.node.create_subscription(message_type, topic, received.append, qos)
        return received

    def spin_until(self, condition: Callable[[], bool], seconds: float = 60.0) -> bool:
        """Spin until the condition holds; returns whether it does. Generous, for loaded machines."""
        end = time.monotonic() + seconds
        while not condition() and time.monotonic() < end:
            self._executor.spin_once(timeout_sec=0.02)
        return bool(condition())

    def spin_for(self, seconds: float) -> None:
        """Spin for a while."""
        self.spin_until(lambda: False, seconds)

    def start(self, *words: str) -> subprocess.Popen:
        """Start `oxygen_ros WORDS` as a process with its output in pipes."""
        process = subprocess.Popen([sys.executable, '-m', 'oxygen_ros', *words], text=True, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE)
        self._processes.append(process)
        return process

    def stop(self, process: subprocess.Popen, number: int = signal.SIGINT) -> str:
        """End a process by a signal; check that it ends in an orderly way; return what it wrote to stderr."""
        process.send_signal(number)
        _, errors = process.communicate(timeout=20)
        assert process.returncode == 0, errors
        assert 'Traceback' not in errors, errors
        return errors

    def close(self) -> None:
        """End everything that is left."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.communicate()
        self._executor.shutdown()
        for node in self._nodes:
            node.destroy_node()
        self.context.try_shutdown()


@pytest.fixture
def ros_graph(ros_domain):
    """Give a RosGraph in a domain of this test's own."""
    graph = RosGraph(ros_domain)
    yield graph
    graph.close()
