"""Episodes in the simulator through the engine, in one thread and on one virtual clock."""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

import numpy as np

from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.requests import ActionChunk, AdmissionError, Event, FinishReason, TextDelta
from oxygen_ros.engine.scheduler import Mode
from oxygen_ros.evaluation.smoothness import ChunkGaps, jerk
from oxygen_ros.offline.virtual_time import SECOND, CostedModel, StageCosts, VirtualClock
from oxygen_ros.simulation import robot_model
from oxygen_ros.simulation.dataset import Question
from oxygen_ros.simulation.episode import DURATION, Episode, Facts, Judge, Outcome, score_answer, score_line, score_note
from oxygen_ros.simulation.language import draw_questions
from oxygen_ros.simulation.objects import TableObject
from oxygen_ros.simulation.simulation import Simulation, Truth
from oxygen_ros.tasks.session import Session, SessionSettings, TextSettings

KEPT_TRUTHS = 200  # frames whose truth is remembered, for texts that end late


@dataclass(frozen=True)
class Rates:
    """Times per second. The texts are 0 where nobody shall speak."""

    control: float = 50.0
    camera: float = 10.0
    action: float = 5.0
    speech: float = 0.0
    memory: float = 0.0
    question: float = 0.0

    @classmethod
    def with_texts(cls) -> Rates:
        """Return rates at which texts run all the time."""
        return cls(speech=1.0, memory=0.5, question=0.5)


@dataclass
class EpisodeResult:
    """
    :param distance: at the end, from the nearer fingertip to the point above the object, m; NaN without an object.
    :param seconds: of the episode. :param chunks: that were made.
    :param jerk: root mean square over joints and time, rad/s^3. :param gaps: see `ChunkGaps`, rad.
    :param answers: (kind, right). :param lines: right or not. Only what has one right answer counts.
    """

    episode: Episode
    outcome: Outcome = Outcome.MISSED
    distance: float = float('nan')
    seconds: float = 0.0
    chunks: int = 0
    jerk: float = float('nan')
    gaps: list[float] = field(default_factory=list)
    answers: list[tuple[str, bool]] = field(default_factory=list)
    lines: list[bool] = field(default_factory=list)
    notes: list[Facts] = field(default_factory=list)


class ClosedLoop:
    """
    A policy that drives a simulated robot, in one mode of the engine.

    The engine's work takes virtual time (`costs`), during which the robot moves on; so the modes differ as they do in
    truth, and still every run is the same.

    :param settings: their mode is replaced. :param cameras: that are shown; None shows all.
    """

    def __init__(self, settings: SessionSettings, mode: Mode, costs: StageCosts, rates: Rates,
                 simulation: Simulation | None = None, cameras: Collection[str] | None = None) -> None:
        self.simulation = simulation or Simulation()
        self._rates, self._cameras = rates, cameras
        self._clock = VirtualClock(self.simulation.time_ns, self.simulation.time_ns)
        self._qpos = [self.simulation.model.joint(name).qposadr[0] for name in robot_model.JOINTS]
        self._running = False
        self._inbox: deque[Callable[[Engine], None]] = deque()
        self._timers: list[tuple[int, int, int, Callable[[], None]]] = []  # due, order, period, what to do
        engine = replace(settings.engine, scheduler=replace(settings.engine.scheduler, mode=mode))
        text = TextSettings(max_tokens=48)
        self.session = Session(replace(settings, engine=engine, answer=replace(text, queue_limit=8), speech=text,
                                       memory=replace(text, queue_limit=1)), self._take, self._clock.seconds,
                               lambda: self._clock.now_ns, wrap=lambda model: CostedModel(model, costs, self._spend))

    def run(self, episode: Episode, duration: float = DURATION) -> EpisodeResult:
        """Run an episode to its end: the object was pointed at for long enough, or the time is over."""
        simulation, session, clock = self.simulation, self.session, self._clock
        episode.begin(simulation)
        session.forget()
        session.engine.begin(episode.instruction)
        self._inbox.clear()
        clock.now_ns = max(clock.now_ns, simulation.time_ns)
        self._offset_ns = clock.now_ns - simulation.time_ns  # engine stages that were under way at the last end
        self._judge, self._result = Judge(episode), EpisodeResult(episode)
        self._truths: dict[int, Truth] = {}
        self._questions: dict[int, tuple[Question, tuple[TableObject, ...]]] = {}
        self._texts: dict[int, str] = {}
        self._moved: list[np.ndarray] = []
        self._gaps = ChunkGaps()
        self._random = np.random.default_rng([episode.seed, 3])
        started, end = clock.now_ns, clock.now_ns + round(duration * SECOND)
        self._start_timers()
        self._running = True
        while clock.now_ns < end and not self._judge.reached:
            until = self._cycle()
            if until is not None:
                self._advance(min(until, end), until_posted=True)
        self._running = False
        result = self._result
        result.outcome, result.distance = self._judge.outcome, self._judge.distance
        result.seconds = (clock.now_ns - started) / SECOND
        result.jerk = jerk(np.array(self._moved), 1 / self._rates.control)
        result.gaps = self._gaps.values
        self._finish_texts()
        return result

    def _finish_texts(self) -> None:
        """Let the texts that run come to their end; time stands still for the robot."""
        engine = self.session.engine
        engine.cancel_action()
        self._inbox.clear()
        while (status := engine.status()).running or status.waiting:
            if engine.run_cycle() is not None:
                break
        engine.end()

    # -- time --------------------------------------------------------------------------------------------------------

    def _start_timers(self) -> None:
        rates = self._rates
        # In this order where they fall together: what a frame shows is how it was before the step.
        timers = [(rates.camera, self._camera_due), (rates.action, self._action_due), (rates.speech, self._speech_due),
                  (rates.memory, self._memory_due), (rates.question, self._question_due),
                  (rates.control, self._control_due)]
        order = itertools.count()
        self._timers = [(self._clock.now_ns, next(order), round(SECOND / rate), due) for rate, due in timers if rate]
        heapq.heapify(self._timers)

    def _cycle(self) -> int | None:
        self._poll()
        until = self.session.engine.run_cycle(self._poll)
        return None if until is None else max(self._clock.at(until), self._clock.now_ns + 1)

    def _poll(self) -> bool:
        posted = bool(self._inbox)
        while self._inbox:
            self._inbox.popleft()(self.session.engine)
        return posted

    def _spend(self, nanoseconds: int) -> None:
        """A stage of the engine takes so long; the robot moves meanwhile."""
        if self._running:
            self._advance(self._clock.now_ns + nanoseconds)
        else:
            self._clock.now_ns += nanoseconds

    def _advance(self, to_ns: int, until_posted: bool = False) -> None:
        while self._timers[0][0] <= to_ns:
            due_ns, order, period, due = self._timers[0]
            heapq.heapreplace(self._timers, (due_ns + period, order, period, due))
            self._clock.now_ns = max(self._clock.now_ns, due_ns)
            due()
            if until_posted and self._inbox:
                return
        self._clock.now_ns = max(self._clock.now_ns, to_ns)

    # -- what happens at its time ------------------------------------------------------------------------------------

    def _control_due(self) -> None:
        command = self.session.commands.command(self._clock.now_ns)
        if command is not None:
            self.simulation.command(command[1].positions, command[0].names)
        self.simulation.step(1 / self._rates.control)
        truth = self._bare_truth()
        self._judge.watch(truth, self.simulation.time_ns / SECOND)
        self._moved.append(truth.joints)

    def _bare_truth(self) -> Truth:
        """Return what is so at this moment, without what is seen, which would have to be rendered."""
        simulation = self.simulation
        joints = simulation.data.qpos[self._qpos].copy()
        tips = {arm: simulation.oracle.fingertip(joints, arm) for arm in robot_model.ARMS}
        return Truth(simulation.scene.objects, tips, joints, float(np.abs(joints - simulation.oracle.rest).max()))

    def _camera_due(self) -> None:
        seen = self.simulation.observe()
        images = {name: image for name, image in seen.images.items() if self._cameras is None or name in self._cameras}
        seen = replace(seen, stamp_ns=seen.stamp_ns + self._offset_ns, images=images)
        if self._rates.speech or self._rates.memory or self._rates.question:
            self._truths[seen.number] = self.simulation.truth()
            while len(self._truths) > KEPT_TRUTHS:
                self._truths.pop(next(iter(self._truths)))
        self.session.commands.measured(seen.joint_names, seen.joint_positions)
        inputs = self.session.action.policy_input(seen)
        self._inbox.append(lambda engine: engine.observe(inputs))

    def _action_due(self) -> None:
        deadline = self._clock.seconds() + 1 / self._rates.action
        self._inbox.append(lambda engine: engine.request_action(deadline))

    def _speech_due(self) -> None:
        self._submit('speech')

    def _memory_due(self) -> None:
        self._submit('memory')

    def _question_due(self) -> None:
        if self._truths:
            objects = next(reversed(self._truths.values())).objects
            question = draw_questions(self._random, objects, 1)[0]
            self._questions[self._submit('answer', question.question)] = question, objects

    def _submit(self, task: str, text: str = '') -> int:
        request = self.session.texts[task].request(self._clock.seconds(), text)

        def submit(engine: Engine) -> None:
            try:
                engine.submit(request)
            except AdmissionError:
                pass  # too many wait already, which the figures show as fewer texts

        self._inbox.append(submit)
        return request.request_id

    # -- what comes out ----------------------------------------------------------------------------------------------

    def _take(self, event: Event) -> None:
        if isinstance(event, ActionChunk):
            if self._running:
                self._result.chunks += 1
                chunk = self.session.action.joint_chunk(event)
                self._gaps.push(chunk)
                self.session.commands.push(chunk, self._clock.now_ns)
        elif isinstance(event, TextDelta):
            request_id = event.request.request_id
            self._texts[request_id] = self._texts.get(request_id, '') + event.delta
            if event.finish is FinishReason.STOP and event.inputs is not None:
                self._score(event, self._texts.pop(request_id))

    def _score(self, event: TextDelta, text: str) -> None:
        """Score a text by what was so when its frame was taken."""
        truth = self._truths.get(event.inputs.number)
        if truth is None:
            return
        result, task = self._result, event.request.task
        if task == 'memory':
            result.notes.append(score_note(text, truth.objects))
        elif task == 'speech':
            right = score_line(text, result.episode.instruction, [truth])
            if right is not None:
                result.lines.append(right)
        elif (question := self._questions.pop(event.request.request_id, None)) is not None:
            asked, objects = question
            # Whatever moves in front of an object changes what is right.
            if asked.clear and [item.seen for item in objects] == [item.seen for item in truth.objects]:
                result.answers.append((asked.kind, score_answer(asked, text)))
