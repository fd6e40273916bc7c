"""
Whole lives of inference nodes, again and again in one process: threads, file handles, Python objects and memory stay as
they are after the first few. `OXYGEN_ROS_TEST_CYCLES=100` makes it a hundred (doc/soak.md has the figures).
"""

import ctypes
import gc
import os
import threading

import psutil
from inference_life import Life
from lifecycle_msgs.msg import State

from oxygen_ros.nodes.inference import InferenceNode

CYCLES = int(os.environ.get('OXYGEN_ROS_TEST_CYCLES', '15'))
FIRST = 5  # cycles that warm up: caches of torch and Fast DDS, arenas of malloc
UNCONFIGURED, ACTIVE, FINALIZED = (
    State.PRIMARY_STATE_UNCONFIGURED, State.PRIMARY_STATE_ACTIVE, State.PRIMARY_STATE_FINALIZED)


class Footprint:
    """What the process holds, compared with what it held at the beginning."""

    def __init__(self, graph):
        self._graph, self._process = graph, psutil.Process()
        self._begin = self._now()

    def _now(self):
        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        process = self._process
        return process.num_threads(), process.num_fds(), len(gc.get_objects()), process.memory_info().rss

    def check(self, cycles, model_bytes):
        """
        Fail when something was left behind by a cycle.

        :param model_bytes: of the cache of one model. A cycle that left it behind, or its share of Python objects
            (hundreds), would be seen: the limits are a quarter of that, and allocators take less.
        """
        threads, handles, objects, size = self._begin
        assert self._graph.spin_until(
            lambda: self._process.num_threads() <= threads and self._process.num_fds() <= handles, 10), (
            self._begin, self._now(), [thread.name for thread in threading.enumerate()])
        end = self._now()
        print(f'{cycles} cycles: threads, handles, objects, bytes {self._begin} -> {end}')
        assert (end[2] - objects) / cycles < 50
        assert (end[3] - size) / cycles < model_bytes / 4


def state(node):
    return node._state_machine.current_state[0]


def test_node_that_goes_through_its_life_again_and_again_leaves_nothing_behind(ros_graph, tmp_path):
    life = Life(ros_graph, tmp_path)
    node = life.node
    for cycle in range(FIRST + CYCLES):
        if cycle == FIRST:
            footprint = Footprint(ros_graph)
        node.trigger_configure()
        node.trigger_activate()
        assert state(node) == ACTIVE
        size = node.session.engine.cache.spec.total_bytes()
        ros_graph.spin_for(0.01)
        node.trigger_deactivate()
        node.trigger_cleanup()
        assert state(node) == UNCONFIGURED
        ros_graph.spin_for(0.01)
    footprint.check(CYCLES, size)


def test_node_after_node_in_one_process_leaves_nothing_behind(ros_graph, tmp_path):
    """Each is shut down in another state: unconfigured, inactive, active."""
    life = Life(ros_graph, tmp_path)
    node = life.node
    for cycle in range(FIRST + CYCLES):
        if cycle == FIRST:
            footprint = Footprint(ros_graph)
        if cycle % 3:
            node.trigger_configure()
            size = node.session.engine.cache.spec.total_bytes()
        if cycle % 3 == 2:
            node.trigger_activate()
            assert state(node) == ACTIVE
        ros_graph.spin_for(0.01)
        node.trigger_shutdown()
        assert state(node) == FINALIZED
        ros_graph.spin_for(0.01)
        ros_graph.remove(node)
        life.node = node = None
        gc.collect()  # a node is a circle of references
        node = ros_graph.add(InferenceNode, **life.parameters)
    footprint.check(CYCLES, size)
