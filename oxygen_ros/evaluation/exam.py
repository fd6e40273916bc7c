"""Questions, lines and notes about held-out frames, through the engine; no simulator is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np

from oxygen_ros.engine.config import EngineConfig
from oxygen_ros.engine.requests import ActionChunk, Event, FinishReason, TextDelta
from oxygen_ros.engine.scheduler import Mode, SchedulerConfig
from oxygen_ros.observation import Observation
from oxygen_ros.simulation.dataset import Dataset, Frame
from oxygen_ros.simulation.episode import Facts, score_answer, score_note
from oxygen_ros.simulation.objects import TableObject
from oxygen_ros.tasks.session import Session, SessionSettings, TextSettings

FRAME_SECONDS = 1.0  # between two frames, on a clock that stands still while the engine works


@dataclass
class ExamResult:
    """
    What came out of an exam; texts with more than one right answer are apart.

    :param answers: (kind of question, right) of clear questions. :param unclear: likewise of the others.
    :param lines: (kind of task, right) of clear spoken lines. :param notes: facts of the notes.
    :param whole_notes: whether a clear note is right word by word.
    :param errors: root mean square error of the chunk in rad, by frame.
    :param texts: (frame, task, question) -> text, :param chunks: frame -> actions: what the modes must agree in.
    """

    answers: list[tuple[str, bool]] = field(default_factory=list)
    unclear: list[tuple[str, bool]] = field(default_factory=list)
    lines: list[tuple[str, bool]] = field(default_factory=list)
    notes: list[Facts] = field(default_factory=list)
    whole_notes: list[bool] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    texts: dict[tuple[int, str, str], str] = field(default_factory=dict)
    chunks: dict[int, np.ndarray] = field(default_factory=dict)


class Exam:
    """
    Asks one policy about frames of a dataset, in one mode of the engine.

    :param settings: its mode is replaced. :param cameras: that are shown; None shows all.
    """

    def __init__(self, settings: SessionSettings, mode: Mode, dataset: Dataset, cameras: Iterable[str] | None = None,
                 ) -> None:
        self._dataset = dataset
        self._cameras = None if cameras is None else set(cameras)
        self._now, self._ended, self._texts = 0.0, {}, {}
        self._chunk: ActionChunk | None = None
        room = TextSettings(max_tokens=48, queue_limit=64)
        engine = replace(settings.engine, scheduler=replace(settings.engine.scheduler, mode=mode))
        self._session = Session(replace(settings, engine=engine, answer=room, speech=room, memory=room), self._take,
                                lambda: self._now, lambda: round(self._now * 1e9))
        self.result = ExamResult()

    @property
    def session(self) -> Session:
        """The session that is asked."""
        return self._session

    def run(self, frames: Iterable[int], report: Callable[[int], None] = lambda questions: None) -> ExamResult:
        """
        Ask everything about some frames of the dataset.

        :param report: told how many questions were answered so far.
        """
        for number, index in enumerate(frames, 1):
            self._frame(number, self._dataset[index])
            report(len(self.result.answers) + len(self.result.unclear))
        return self.result

    def _frame(self, number: int, frame: Frame) -> None:
        session, info = self._session, self._dataset.info
        self._now += FRAME_SECONDS
        images = {name: image for name, image in zip(info.cameras, frame.images)
                  if self._cameras is None or name in self._cameras}
        observation = Observation(number, round(self._now * 1e9), images, info.joints, frame.joints.astype(np.float64))
        engine, task = session.engine, frame.tasks[0]
        self._ended, self._texts, self._chunk = {}, {}, None
        engine.begin(task.instruction)
        engine.observe(session.action.policy_input(observation))
        requests = [session.texts['answer'].request(self._now, question.question) for question in frame.questions]
        requests += [session.texts['speech'].request(self._now), session.texts['memory'].request(self._now)]
        for request in requests:
            engine.submit(request)
        engine.request_action(self._now)
        while self._chunk is None or len(self._ended) < len(requests):
            if engine.run_cycle() is not None:
                raise RuntimeError(f'the engine stands still at frame {number} with {len(self._ended)} of '
                                   f'{len(requests)} texts')
        engine.cancel_action()
        texts = [self._text(request.request_id) for request in requests]
        for request, text in zip(requests, texts):
            self.result.texts[number, request.task, request.text] = text
        self.result.chunks[number] = self._chunk.actions
        self._mark(frame, texts)

    def _mark(self, frame: Frame, texts: list[str]) -> None:
        result, task = self.result, frame.tasks[0]
        for question, text in zip(frame.questions, texts):
            (result.answers if question.clear else result.unclear).append(
                (question.kind, score_answer(question, text)))
        line, note = texts[-2:]
        if task.line_clear:
            result.lines.append((task.kind, line == task.line))
        result.notes.append(score_note(note, [TableObject.from_dict(item) for item in frame.objects]))
        if frame.note.clear:
            result.whole_notes.append(note == frame.note.text)
        chunk = self._session.action.joint_chunk(self._chunk)
        columns = [self._dataset.info.joints.index(name) for name in chunk.names]
        wanted = task.chunk[:len(chunk.positions), columns]
        result.errors.append(float(np.sqrt(np.mean((chunk.positions[:len(wanted)] - wanted) ** 2))))

    def _text(self, request_id: int) -> str:
        """Return a text that has ended; one that was cut short is nobody's answer."""
        text = ' '.join(self._texts[request_id].split())
        return text if self._ended[request_id] is FinishReason.STOP else f'{text} ({self._ended[request_id].name})'

    def _take(self, event: Event) -> None:
        if isinstance(event, ActionChunk):
            self._chunk = event
        elif isinstance(event, TextDelta):
            request_id = event.request.request_id
            self._texts[request_id] = self._texts.get(request_id, '') + event.delta
            if event.finish is not None:
                self._ended[request_id] = event.finish


def session_settings(model: str, robot: str, checkpoint: str = '', seed: int = 0, branches: int = 8) -> SessionSettings:
    """Return settings of a session for an evaluation."""
    return SessionSettings(model=model, robot=robot, checkpoint=checkpoint, seed=seed, engine=EngineConfig(
        scheduler=SchedulerConfig(), max_branches=branches, branch_tokens=96, seed=seed))
