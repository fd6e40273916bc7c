"""The replay starts when the node that shall see it is active."""

from __future__ import annotations

import threading

import pytest
from lifecycle_msgs.msg import State
from lifecycle_msgs.srv import GetState

from oxygen_ros.nodes.lifecycle_gate import LifecycleGate


@pytest.fixture
def lifecycle_node(ros_graph):
    """A stand-in for the lifecycle node `gate`: its state, which the test may set, and how often it was asked."""
    class Stand:
        state = State.PRIMARY_STATE_INACTIVE
        asked = 0

        def answer(self, _, response):
            self.asked += 1
            response.current_state.id = self.state
            return response

    stand = Stand()
    ros_graph.node.create_service(GetState, 'gate/get_state', stand.answer)
    return stand


@pytest.fixture
def waiting(ros_graph):
    """Return a function that starts a wait for a node, and returns its thread. The wait ends with the test."""
    stop = threading.Event()
    threads = []

    def wait(name: str) -> threading.Thread:
        gate = LifecycleGate(ros_graph.node, name)
        threads.append(threading.Thread(target=gate.wait, args=[stop]))
        threads[-1].start()
        return threads[-1]

    wait.stop = stop
    yield wait
    stop.set()
    ros_graph.spin_until(lambda: not any(thread.is_alive() for thread in threads))


def test_wait_ends_when_the_node_becomes_active(ros_graph, lifecycle_node, waiting):
    thread = waiting('gate')
    assert ros_graph.spin_until(lambda: lifecycle_node.asked >= 3)
    assert thread.is_alive()
    lifecycle_node.state = State.PRIMARY_STATE_ACTIVE
    assert ros_graph.spin_until(lambda: not thread.is_alive())


def test_wait_for_a_node_that_never_comes_ends_when_it_is_told_to(ros_graph, waiting):
    thread = waiting('nobody')
    ros_graph.spin_for(0.3)
    assert thread.is_alive()
    waiting.stop.set()
    assert ros_graph.spin_until(lambda: not thread.is_alive())


def test_no_name_is_no_wait(ros_graph, waiting):
    thread = waiting('')
    thread.join(timeout=10)
    assert not thread.is_alive()
