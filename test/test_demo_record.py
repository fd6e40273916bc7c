"""What the demo takes in from the topics, and the rates that it makes of it."""

import pytest

from oxygen_ros.demo.record import Milestone, Record, live_rate, rate
from oxygen_ros.msg import EngineStatus


def test_the_rate_counts_intervals_not_events():
    assert rate([0.0, 0.2, 0.4, 0.6]) == pytest.approx(5.0)


def test_fewer_than_two_events_have_no_rate():
    assert rate([]) == rate([1.0]) == 0.0


def test_silence_at_the_end_lowers_the_rate():
    times = [0.1 * n for n in range(11)]
    assert rate(times, end=1.05) == pytest.approx(10.0)
    assert rate(times, end=2.0) == pytest.approx(5.0)


def test_the_live_rate_forgets_old_events():
    assert live_rate([0.0, 0.1, 0.2, 100.0, 101.0, 102.0], now=102.0) == pytest.approx(1.0)


def test_a_milestone_stands_for_those_before_it_and_keeps_its_first_time():
    record = Record(started=0.0)
    record.take_chunk(7.0)
    record.take_chunk(8.0)
    assert record.reached == dict.fromkeys(Milestone, 7.0)


def test_a_status_tells_whether_a_frame_has_arrived():
    record = Record(started=0.0)
    record.take_status(EngineStatus(frames_received=0), 3.0)
    assert Milestone.MODEL in record.reached and Milestone.FRAME not in record.reached
    record.take_status(EngineStatus(frames_received=2), 4.0)
    assert record.reached[Milestone.FRAME] == 4.0


def test_token_counting_begins_with_the_first_status_after_a_chunk():
    record = Record(started=0.0)
    record.take_status(EngineStatus(tokens=10), 1.0)
    record.take_chunk(1.5)
    record.take_status(EngineStatus(tokens=40), 2.0)
    record.take_status(EngineStatus(tokens=90), 3.0)
    assert (record.first_status.tokens, record.first_status_time, record.status.tokens) == (40, 2.0, 90)
