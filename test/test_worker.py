"""The worker thread: what runs when, what becomes of errors, and that nothing is left behind."""

import concurrent.futures
import math
import threading
import time

import pytest
from engine_fakes import FakeClock, Rig

from oxygen_ros.engine.requests import FinishReason
from oxygen_ros.engine.scheduler import Mode
from oxygen_ros.engine.worker import Worker, WorkerFailed

SOON = 20  # seconds that nothing takes here, even on a loaded machine


class FakeEngine:
    """Runs cycles that the test lets through one by one, or sleeps when `wait` is set."""

    def __init__(self):
        self.clock = time.monotonic
        self.wait = math.inf
        self.cycles = 0
        self.ran = []
        self.error = None
        self.during = lambda poll: None

    def run_cycle(self, poll):
        self.cycles += 1
        if self.error:
            raise self.error
        self.during(poll)
        return self.wait


@pytest.fixture
def engine():
    return FakeEngine()


@pytest.fixture
def failures():
    return []


@pytest.fixture
def worker(engine, failures):
    threads = set(threading.enumerate())
    worker = Worker(engine, failures.append)
    yield worker
    worker.stop(SOON)
    assert set(threading.enumerate()) <= threads, 'a thread is left'


def test_commands_run_in_order_in_the_worker_thread(worker):
    worker.start()
    names = []
    for i in range(20):
        worker.post(lambda engine, i=i: engine.ran.append((i, threading.current_thread().name)))
    ran = worker.call(lambda engine: list(engine.ran)).result(SOON)
    names = {name for _, name in ran}
    assert [i for i, _ in ran] == list(range(20)) and names == {'engine'}


def test_commands_before_the_start_run_at_the_start(worker):
    future = worker.call(lambda engine: 7)
    worker.start()
    assert future.result(SOON) == 7


def test_call_hands_back_result_or_error_and_goes_on(worker, failures):
    worker.start()
    assert worker.call(lambda engine: 42).result(SOON) == 42
    with pytest.raises(ZeroDivisionError):
        worker.call(lambda engine: 1 / 0).result(SOON)
    assert worker.call(lambda engine: 43).result(SOON) == 43
    assert not failures and worker.alive


def test_cancelled_call_does_not_run(worker):
    future = worker.call(lambda engine: engine.ran.append('cancelled'))
    assert future.cancel()
    worker.start()
    assert worker.call(lambda engine: engine.ran).result(SOON) == []


def test_command_runs_between_decode_steps(worker, engine):
    polled, go_on = threading.Event(), threading.Event()
    results = []

    def decode(poll):
        if not polled.is_set():
            results.append(poll())
            polled.set()
            go_on.wait(SOON)
            results.append(poll())

    engine.during = decode
    worker.start()
    assert polled.wait(SOON)
    future = worker.call(lambda engine: engine.cycles)
    assert not future.done()
    go_on.set()
    assert future.result(SOON) == 1  # still in the first cycle
    worker.call(lambda engine: None).result(SOON)
    assert results == [False, True]


def test_command_wakes_a_sleeping_worker_whatever_it_waits_for(worker, engine):
    for wait in (math.inf, 1e30, time.monotonic() + 1e6):
        engine.wait = wait
        if not worker.alive:
            worker.start()
        assert worker.call(lambda engine: 'awake').result(SOON) == 'awake'


def test_worker_wakes_by_itself_when_the_time_has_come(worker, engine):
    engine.wait = -1.0
    done = threading.Event()
    engine.during = lambda poll: done.set() if engine.cycles > 3 else None
    worker.start()
    assert done.wait(SOON)


def test_stop_cancels_what_has_not_run(worker, engine):
    started, go_on = threading.Event(), threading.Event()
    worker.post(lambda engine: (started.set(), go_on.wait(SOON)))
    futures = [worker.call(lambda engine: engine.ran.append('ran')) for _ in range(3)]
    worker.start()
    assert started.wait(SOON)
    assert worker.stop(0.01) is False  # still in the first command
    go_on.set()
    assert worker.stop(SOON) is True
    for future in futures:
        assert future.cancelled()
    assert engine.ran == []
    with pytest.raises(concurrent.futures.CancelledError):
        worker.call(lambda engine: 1).result(SOON)
    worker.post(lambda engine: engine.ran.append('late'))
    assert engine.ran == []


def test_stop_lets_no_further_command_run_while_it_waits(worker, engine):
    started, go_on, stopped = threading.Event(), threading.Event(), []
    worker.post(lambda engine: (started.set(), go_on.wait(SOON)))
    future = worker.call(lambda engine: engine.ran.append('ran'))
    worker.start()
    assert started.wait(SOON)
    stopper = threading.Thread(target=lambda: stopped.append(worker.stop(SOON)))
    stopper.start()
    while not worker._stopping:
        time.sleep(1e-3)
    go_on.set()
    stopper.join(SOON)
    assert stopped == [True] and future.cancelled() and engine.ran == []


def test_stop_before_the_start_and_twice(worker):
    future = worker.call(lambda engine: 1)
    assert worker.stop() and worker.stop()
    assert future.cancelled() and not worker.alive


@pytest.mark.parametrize('where', ['cycle', 'post'])
def test_engine_that_raises_ends_in_one_failure(worker, engine, failures, where):
    error = RuntimeError('broken')
    if where == 'cycle':
        engine.error = error
    else:
        worker.post(lambda engine: (_ for _ in ()).throw(error))
    waiting = worker.call(lambda engine: 1) if where == 'post' else None
    worker.start()
    worker._thread.join(SOON)
    assert failures == [WorkerFailed(error)] and not worker.alive
    if waiting is not None:
        assert waiting.cancelled()
    with pytest.raises(concurrent.futures.CancelledError):
        worker.call(lambda engine: 1).result(SOON)
    assert worker.stop() and failures == [WorkerFailed(error)]


def long_text(mode):
    """Return a rig and its worker, not started, with a text of a thousand tokens, and an event set while it decodes."""
    rig, decoding = Rig(mode=mode, branch_tokens=1000), threading.Event()

    def on_call(stage, what):
        time.sleep(1e-3)
        if stage == 'decode' and len(what[0]) > 5:
            decoding.set()

    rig.model.raises = on_call
    worker = Worker(rig.engine, rig.events.append)
    worker.post(lambda engine: (rig.observe(1), rig.submit(max_tokens=990)))
    return rig, worker, decoding


@pytest.mark.parametrize('mode', Mode)
def test_stop_ends_a_text_in_progress_in_every_mode(mode):
    """Also where texts run alone to their end: a robot must be able to shut down."""
    rig, worker, decoding = long_text(mode)
    worker.start()
    assert decoding.wait(SOON)
    assert worker.stop(SOON)
    assert not rig.ends()
    rig.engine.check_integrity()


@pytest.mark.parametrize('mode', Mode)
def test_cancel_reaches_a_text_in_progress_in_every_mode(mode):
    rig, worker, decoding = long_text(mode)
    worker.start()
    try:
        assert decoding.wait(SOON)
        assert worker.call(lambda engine: engine.cancel(1)).result(SOON) == [1]
        assert worker.call(lambda engine: engine.cache.free_branches).result(SOON) == 8
        assert rig.ends() == {1: FinishReason.CANCELLED}
    finally:
        assert worker.stop(SOON)


def test_sleep_is_measured_on_the_clock_of_the_engine(worker, engine):
    """A deadline of 1 s on that clock, which stands at 10 million: it is past."""
    engine.clock = FakeClock(1e7)
    engine.wait = 1.0
    done = threading.Event()
    engine.during = lambda poll: done.set() if engine.cycles > 2 else None
    worker.start()
    assert done.wait(SOON)
