"""System time that is set back is noticed, time that drifts or is set forward is no jump."""

from types import SimpleNamespace

import pytest

from oxygen_ros.nodes import clock_watch
from oxygen_ros.nodes.clock_watch import ClockWatch


class FakeNode:
    """A node whose clock and timer the test moves."""

    def __init__(self):
        self.system_s, self.monotonic_s, self.warnings = 1000.0, 50.0, []
        self.ros_time_is_active = False

    def get_clock(self):
        return SimpleNamespace(create_jump_callback=lambda *_, **__: None, ros_time_is_active=self.ros_time_is_active,
                               now=lambda: SimpleNamespace(nanoseconds=round(self.system_s * 1e9)))

    def get_logger(self):
        return SimpleNamespace(warning=self.warnings.append, info=lambda _: None)

    def create_timer(self, period, callback, clock):
        self.fire = callback

    def tick(self, seconds=1.0, step=0.0):
        self.monotonic_s += seconds
        self.system_s += seconds + step
        self.fire()


@pytest.fixture
def node(monkeypatch):
    node = FakeNode()
    monkeypatch.setattr(clock_watch.time, 'monotonic', lambda: node.monotonic_s)
    return node


def test_only_system_time_that_is_set_back_is_a_jump(node):
    jumps = []
    watch = ClockWatch(node, lambda: jumps.append(1))
    for step in (0.0, 0.001, -0.001, 3600.0, 0.0):
        node.tick(step=step)
    assert not jumps and not watch.unsettled
    node.tick(step=-3600.0)
    assert len(jumps) == 1 and watch.unsettled
    assert node.warnings == ['clock jumped back by 3600.000 s: everything from before it is dropped']
    for _ in range(3):
        node.tick()
    assert len(jumps) == 1 and not watch.unsettled


def test_simulated_time_is_not_measured_against_the_machine(node):
    jumps = []
    ClockWatch(node, lambda: jumps.append(1))
    node.tick()
    node.ros_time_is_active = True
    node.system_s = 10.0
    node.tick()
    node.tick(step=-0.9)  # runs at a tenth of the speed
    assert not jumps
