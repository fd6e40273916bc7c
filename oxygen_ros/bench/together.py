"""`oxygen_ros bench together`: whether actions keep their rate while texts, notes and service calls go on."""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from oxygen_ros.engine.config import EngineConfig
from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.requests import ActionChunk, AdmissionError, BargeIn, TextDelta, TextRequest
from oxygen_ros.engine.worker import Worker
from oxygen_ros.memory.keeper import MemoryKeeper
from oxygen_ros.memory.store import MemoryStore
from oxygen_ros.observation import Observation
from oxygen_ros.tasks.session import Session, SessionSettings, TextSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `oxygen_ros bench together`."""
    parser.add_argument('--model', default='tiny', help='name or path of a model file (default: tiny)')
    parser.add_argument('--checkpoint', default='', metavar='DIR', help='folder of the weights (default: random ones)')
    parser.add_argument('--robot', default='unitree_g1', help='name or path of a robot file (default: unitree_g1)')
    parser.add_argument('--device', default='cpu', help='of torch (default: cpu)')
    parser.add_argument('--rate', type=float, default=5.0, metavar='HZ', help='actions per second (default: 5)')
    parser.add_argument('--seconds', type=float, default=5.0, metavar='S', help='of one part (default: 5)')
    parser.add_argument('--rounds', type=int, default=4, metavar='R',
                        help='pairs of a quiet and a busy part (default: 4)')


def main(arguments: argparse.Namespace) -> int:
    """Alternate quiet and busy parts and print chunks, lateness and the time to the first text."""
    sys.setswitchinterval(1e-4)  # as the node does
    with tempfile.TemporaryDirectory() as folder:
        run = Together(arguments, Path(folder) / 'memory.db')
        try:
            for _ in range(arguments.rounds):
                for busy in (False, True):
                    run.part(busy)
        finally:
            run.close()
    run.print()
    return 0


class Together:
    """An engine on its worker, and a robot's day in short: frames, questions, lines, notes, service calls."""

    def __init__(self, arguments: argparse.Namespace, path: Path) -> None:
        self._period, self._ticks = 1 / arguments.rate, round(arguments.seconds * arguments.rate)
        self._events: list = []
        self._session = Session(SessionSettings(
            model=arguments.model, checkpoint=arguments.checkpoint, robot=arguments.robot, device=arguments.device,
            engine=EngineConfig(branch_tokens=400), answer=TextSettings(300, queue_limit=8),
            speech=TextSettings(24), memory=TextSettings(32, queue_limit=1)), self._events.append)
        self._worker = Worker(self._session.engine, self._events.append)
        self._worker.start()
        self._memory = MemoryKeeper(path, lambda: MemoryStore(path), print, side=128)
        self._numbers = itertools.count(1)
        picture = np.random.default_rng(0).integers(0, 256, (224, 224, 3), dtype=np.uint8)
        self._images = dict.fromkeys(self._session.spec.cameras, picture)
        joints = self._session.action.robot.joints
        self._names, self._pose = tuple(j.name for j in joints), np.array([j.default for j in joints])
        self._tick = time.monotonic()
        self._parts: dict[bool, list[tuple[int, int]]] = {False: [], True: []}  # numbers of first and last frame
        self._calls: list[float] = []

    def part(self, busy: bool) -> None:
        """Ask for actions at their rate; when busy, also for everything else."""
        first = None
        for index in range(self._ticks):
            time.sleep(max(0.0, self._tick - time.monotonic()))
            number = next(self._numbers)
            first = first or number
            inputs = self._session.action.policy_input(
                Observation(number, time.time_ns(), self._images, self._names, self._pose))
            self._tick += self._period
            self._worker.post(lambda engine, inputs=inputs, deadline=self._tick: (
                engine.observe(inputs), engine.request_action(deadline)))
            if busy:
                self._everything_else(index, number)
        self._parts[busy].append((first, number))

    def close(self) -> None:
        """End the threads."""
        time.sleep(2 * self._period)  # for the last chunk
        self._worker.stop()
        self._memory.close()

    def print(self) -> None:
        """Print what came out."""
        chunks = {event.inputs.number: event for event in self._events if isinstance(event, ActionChunk)}
        wanted = self._ticks * len(self._parts[False])
        for busy, parts in self._parts.items():
            found = [chunks[number] for first, last in parts for number in range(first, last + 1) if number in chunks]
            late = np.array([chunk.finished - chunk.deadline for chunk in found]) * 1e3
            print(f'{"busy" if busy else "quiet":6} {len(found)} chunks of {wanted} frames, lateness ms '
                  f'p50 {np.median(late):.1f} p99 {np.quantile(late, 0.99):.1f}, {int((late > 0).sum())} late')
        firsts = [event for event in self._events
                  if isinstance(event, TextDelta) and event.sequence == 0 and event.inputs is not None]
        for task in ('answer', 'speech', 'memory'):
            elapsed = [1e3 * event.elapsed for event in firsts if event.request.task == task] or [float('nan')]
            print(f'{task:6} {len(elapsed)} texts, first text after ms p50 {np.median(elapsed):.1f} '
                  f'p90 {np.quantile(elapsed, 0.9):.1f}')
        status = self._session.engine.status()
        print(f'a prefill takes {1e3 * status.prefill:.1f} ms, denoising {1e3 * status.denoise:.1f} ms, a decode step '
              f'{1e3 * status.decode_step:.1f} ms; {status.counters.tokens} tokens; two calls of the engine took ms '
              f'p50 {1e3 * float(np.median(self._calls)):.1f}')

    def _everything_else(self, index: int, number: int) -> None:
        now, texts = time.monotonic(), self._session.texts
        if index % 10 == 0:  # a long answer, which the next one supersedes
            self._submit(texts['answer'].request(now, 'what do you see?', conversation='talk',
                                                 barge_in=BargeIn.SUPERSEDE, seed=number))
        if index % 2:
            self._submit(texts['speech'].request(now))
        if index % 4 == 1:
            self._submit(texts['memory'].request(now))
        self._worker.call(Engine.status).result()
        self._worker.call(lambda engine: engine.cancel(10**9)).result()
        self._calls.append(time.monotonic() - now)
        self._memory.add(f'note {number}', number, number, image=next(iter(self._images.values())))
        self._memory.query('note', None, None, 20).result()

    def _submit(self, request: TextRequest) -> None:
        def submit(engine: Engine) -> None:
            try:
                engine.submit(request)
            except AdmissionError:
                pass  # a full queue

        self._worker.post(submit)
