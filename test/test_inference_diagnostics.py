"""What the inference node says about itself is true after a new activation and with wrong clocks."""

import logging
from types import SimpleNamespace

import pytest
from diagnostic_msgs.msg import DiagnosticStatus

from oxygen_ros.engine.statistics import Statistics
from oxygen_ros.nodes.inference_diagnostics import InferenceDiagnostics
from oxygen_ros.robot.chunk import CommandSource

NOW_NS = 100_000_000_000
STATE = {'running': 0, 'waiting': 0, 'frames_resident': 0, 'kv_bytes': 0, 'kv_bytes_peak': 0, 'kv_bytes_allocated': 1,
         'kv_bytes_budget': 1, 'prefill': 0.0, 'denoise': 0.0, 'decode_step': 0.0}


class FakeNode:
    """What the diagnostics need of an active inference node; keeps what is published."""

    def __init__(self):
        self.heard = []
        self.active = self.may_move = True
        self.state_name, self.instruction = 'active', 'look around'
        self.values = {'mode': 'shared_kv', 'max_frame_age': 0.5, 'action.rate': 5.0}
        self.clock_watch = SimpleNamespace(waits_for_clock=False)
        self.session = SimpleNamespace(
            spec=SimpleNamespace(random_weights=False, name='tiny', weights='w'),
            commands=SimpleNamespace(stopped=False), action=SimpleNamespace(robot=SimpleNamespace(name='robot')))
        self.qos_watch = SimpleNamespace(check=lambda: ())
        self.outputs = SimpleNamespace(controller=None)
        self.memory = SimpleNamespace(path='memory.db')

    def create_publisher(self, kind, topic, depth):
        return SimpleNamespace(publish=lambda message: self.heard.append(message))

    def get_clock(self):
        return SimpleNamespace(now=lambda: SimpleNamespace(nanoseconds=NOW_NS))

    def get_logger(self):
        return logging.getLogger('test')

    def get_fully_qualified_name(self):
        return '/inference'

    def resolve_topic_name(self, name):
        return f'/{name}'

    def said(self, part):
        return next(status for status in self.heard[-1].status if status.name == f'inference: {part}')


@pytest.fixture
def node():
    return FakeNode()


def test_strange_joints_are_named_and_forgotten_when_they_are_not(node):
    diagnostics = InferenceDiagnostics(node)
    diagnostics.frame_arrived(NOW_NS)
    diagnostics.state_checked({'elbow': 'is at 90.00, outside its limits -2 to 2, is it in degrees?'})
    diagnostics.publish(None)
    assert node.said('frames').level == DiagnosticStatus.WARN
    assert "joint 'elbow' is at 90.00, outside its limits" in node.said('frames').message
    diagnostics.state_checked({})
    diagnostics.publish(None)
    assert node.said('frames').level == DiagnosticStatus.OK


@pytest.mark.parametrize(('age_ns', 'level'), [
    (0, DiagnosticStatus.OK), (3_000_000_000, DiagnosticStatus.WARN), (-3_000_000_000, DiagnosticStatus.WARN)])
def test_frames_of_another_time_are_reported(node, age_ns, level):
    diagnostics = InferenceDiagnostics(node)
    diagnostics.frame_arrived(NOW_NS - age_ns)
    diagnostics.publish(Statistics(0.0).snapshot(1.0, **STATE))
    assert node.said('frames').level == level


def test_new_activation_starts_the_report_anew(node):
    diagnostics, statistics = InferenceDiagnostics(node), Statistics(0.0)
    diagnostics.frame_arrived(NOW_NS)
    diagnostics.chunk_rejected('not finite')
    diagnostics.commanded(CommandSource.HOLD)
    statistics.counters.deadline_misses = 7
    diagnostics.publish(statistics.snapshot(1.0, **STATE))
    assert '7 new misses' in node.said('actions').message and 'holds' in node.said('actions').message
    statistics.reset(1.0)
    diagnostics.begin()
    diagnostics.publish(statistics.snapshot(2.0, **STATE))
    assert '0 new misses' in node.said('actions').message and 'holds' not in node.said('actions').message
    assert diagnostics.rejected == 0
    assert 'since the start' in node.said('frames').message


def test_texts_without_a_frame_wait_for_a_frame_not_for_time(node):
    diagnostics = InferenceDiagnostics(node)
    status = Statistics(0.0).snapshot(1.0, **{**STATE, 'waiting': 3})
    diagnostics.publish(status)
    assert node.said('texts').message == '3 texts wait for the first frame'
    diagnostics.frame_arrived(NOW_NS)
    diagnostics.publish(status)
    assert 'none gets time' in node.said('texts').message
