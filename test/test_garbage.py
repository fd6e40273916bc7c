"""The garbage collector does not hold up a running engine."""

import gc
import weakref

import pytest

from oxygen_ros.engine import garbage


@pytest.fixture(autouse=True)
def leave_no_trace():
    yield
    garbage.put_back()


class Ring:
    def __init__(self):
        self.itself = self


def test_collector_passes_over_what_is_set_apart():
    before = gc.get_freeze_count()
    garbage.set_apart()
    assert gc.get_freeze_count() > before + 1000
    garbage.put_back()
    assert gc.get_freeze_count() == 0


def test_what_became_garbage_is_collected_the_next_time():
    ring = Ring()
    alive = weakref.ref(ring)
    garbage.set_apart()
    del ring
    gc.collect()
    assert alive() is not None
    garbage.set_apart()
    assert alive() is None
