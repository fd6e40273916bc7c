"""What the inference node says about itself is true after a new activation and with wrong clocks."""

import logging
from types import SimpleNamespace

import pytest
from diagnostic_msgs.msg import DiagnosticStatus

from oxygen_ros import hardware
from oxygen_ros.engine.statistics import Statistics
from oxygen_ros.nodes.inference_diagnostics import START_SECONDS, InferenceDiagnostics
from oxygen_ros.nodes.steady_levels import CALM, SteadyLevels
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
        self.worker = SimpleNamespace(alive=True, silence=0.0)
        self.watchdog = SimpleNamespace(reason='', limit=10.0)

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
    for _ in range(CALM):
        assert node.said('frames').level == DiagnosticStatus.WARN
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


def test_level_goes_up_at_once_and_down_when_it_stays_better():
    levels = SteadyLevels()
    assert levels.settle('frames', 0, 'well') == (0, 'well')
    assert levels.settle('frames', 2, 'gone') == (2, 'gone')
    for flicker in (0, 0, 2, 0, 0):
        level, text = levels.settle('frames', flicker, 'now')
        assert level == 2 and text.startswith('now')
    assert levels.settle('texts', 0, 'well') == (0, 'well')
    assert levels.settle('frames', 0, 'well') == (0, 'well')


def test_first_seconds_of_a_run_are_no_reason_to_warn(node, monkeypatch):
    diagnostics, statistics = InferenceDiagnostics(node), Statistics(0.0)
    statistics.counters.deadline_misses = 3
    status = statistics.snapshot(1.0, **{**STATE, 'waiting': 2})
    diagnostics.publish(status)
    parts = ('frames', 'actions', 'texts', 'engine')
    assert [node.said(part).level for part in parts] == [DiagnosticStatus.OK] * 4
    diagnostics._began -= START_SECONDS
    diagnostics.publish(status)
    assert node.said('frames').level == DiagnosticStatus.ERROR and node.said('texts').level == DiagnosticStatus.WARN


def test_engine_that_hangs_is_told_although_it_gives_no_figures(node):
    diagnostics = InferenceDiagnostics(node)
    node.worker.silence = 4.0
    diagnostics.publish(None)
    assert node.said('engine').level == DiagnosticStatus.WARN
    node.worker.silence = 11.0
    diagnostics.publish(None)
    assert node.said('engine').level == DiagnosticStatus.ERROR
    assert node.said('engine').message == 'no cycle ended for 11.0 s'


def test_failed_engine_is_an_error_until_the_node_is_configured_again(node):
    diagnostics = InferenceDiagnostics(node)
    node.session, node.worker, node.active = None, None, False
    diagnostics.publish(None)
    assert node.said('state').level == DiagnosticStatus.WARN
    node.watchdog.reason = 'no cycle ended for 11.0 s'
    diagnostics.publish(None)
    assert node.said('state').level == DiagnosticStatus.ERROR and 'no cycle ended' in node.said('state').message


def test_readings_of_the_computer_are_told_with_their_units(node, monkeypatch):
    diagnostics = InferenceDiagnostics(node)
    monkeypatch.setattr(hardware, 'temperatures', lambda: [('chip', 96.0, 100.0)])
    diagnostics.publish(None)
    values = {entry.key: float(entry.value) for entry in node.said('hardware').values}
    assert values['process_bytes'] > 1e6 and 0 <= values['ram_percent'] <= 100 and values['chip_celsius'] == 96.0
    assert node.said('hardware').level == DiagnosticStatus.WARN
    assert 'chip is at 96' in node.said('hardware').message
