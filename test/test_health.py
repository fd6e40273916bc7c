"""Alarms begin once and end once; arrivals give age and rate."""

import pytest

from oxygen_ros.perception.health import Alarms, Arrivals, Level, Stillness


def test_alarm_begins_once_and_ends_when_it_is_not_raised_again():
    alarms = Alarms()
    raised = [alarms.raise_alarm('head', 'late', Level.WARN, 'late', now, lasts_s=2.0) for now in (0.0, 1.0, 2.5)]
    assert raised == [True, False, False]
    assert alarms.expire(4.0) == [] and alarms.expire(5.0) == [('head', 'late')] and alarms.expire(6.0) == []
    assert alarms.raise_alarm('head', 'late', Level.WARN, 'late', 7.0, lasts_s=2.0)


def test_quiet_alarm_is_logged_once_it_is_raised_aloud():
    alarms = Alarms()
    raised = [alarms.raise_alarm('head', 'late', Level.WARN, 'late', now, 2.0, quiet)
              for now, quiet in ((0.0, True), (1.0, True), (2.0, False), (3.0, False), (4.0, True))]
    assert raised == [False, False, True, False, False] and alarms.holds('head', 'late')
    assert alarms.expire(9.0) == [('head', 'late')]
    alarms.raise_alarm('head', 'late', Level.WARN, 'late', 10.0, 2.0, quiet=True)
    assert alarms.summary('head') == (Level.WARN, 'late')
    assert alarms.expire(19.0) == [] and not alarms.holds('head', 'late')


def test_withdrawn_alarm_does_not_end():
    alarms = Alarms()
    alarms.raise_alarm('head', 'late', Level.WARN, 'late', 0.0, 2.0)
    alarms.withdraw('head', 'late')
    assert alarms.expire(9.0) == []


def test_summary_puts_the_worst_first_and_knows_its_source():
    alarms = Alarms()
    alarms.raise_alarm('head', 'duplicate', Level.WARN, 'twice', 0.0, 1.0)
    alarms.raise_alarm('head', 'qos', Level.ERROR, 'no match', 0.0, 1.0)
    assert alarms.summary('head') == (Level.ERROR, 'no match; twice')
    assert alarms.summary('front') == (Level.OK, 'ok')


def test_age_and_rate_of_arrivals():
    arrivals = Arrivals(start_s=100.0)
    assert arrivals.never and arrivals.age(103.0) == 3.0 and arrivals.rate(103.0) == 0.0
    for index in range(100):
        arrivals.add(110.0 + index * 0.1)
    assert not arrivals.never and arrivals.age(120.0) == pytest.approx(0.1)
    assert arrivals.rate(120.0) == pytest.approx(10.0)
    assert arrivals.rate(130.0) == 0.0


def test_content_that_stays_the_same_is_counted_until_it_changes():
    stillness = Stillness()
    marks = ('a', 1.0), ('a', 2.0), ('a', 4.0), ('b', 5.0), ('a', 6.0)
    assert [stillness.seen(*mark) for mark in marks] == [(0, 0.0), (1, 1.0), (2, 3.0), (0, 0.0), (0, 0.0)]
