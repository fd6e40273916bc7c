"""
Everything between observations and outputs, for one model and one robot, without ROS.

The live node and the offline runner build the same session; they differ in clocks and in who calls.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from oxygen_ros.engine.config import EngineConfig
from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.kv_cache import require_budget
from oxygen_ros.engine.requests import BargeIn, Event, SamplingParams, TextRequest
from oxygen_ros.engine.trace import Tracer
from oxygen_ros.errors import ConfigError
from oxygen_ros.models.checkpoints import Progress
from oxygen_ros.models.interface import VLAModel
from oxygen_ros.models.registry import DTYPES, LoadOptions, load_model, read_model_file
from oxygen_ros.robot.chunk_buffer import ChunkBuffer, WhenEmpty
from oxygen_ros.robot.command_stream import CommandStream
from oxygen_ros.robot.robot_file import load_robot
from oxygen_ros.tasks.action import ActionTask
from oxygen_ros.tasks.continuation import ContinuationSettings, ContinuingModel
from oxygen_ros.tasks.memory import NoteCollector
from oxygen_ros.tasks.speech import SentenceStream
from oxygen_ros.tasks.subtask import SubtaskCollector
from oxygen_ros.tasks.text import TextTask

# What starts first when several texts wait: a person who asked, then what to do next, then speech, then notes.
PRIORITIES = {'answer': 0, 'subtask': 1, 'speech': 2, 'memory': 3}
NEWEST_ONLY = ('subtask', 'memory')  # of these, a waiting one gives way to a newer one
UTTERANCES = 'utterance'  # the conversation of those who speak to the robot


@dataclass(frozen=True)
class TextSettings:
    """Settings of a text task; times in seconds."""

    max_tokens: int = 32
    temperature: float = 0.0
    top_p: float = 1.0
    timeout: float = 20.0
    queue_limit: int = 2
    stop: tuple[str, ...] = ()


@dataclass(frozen=True)
class SessionSettings:
    """
    :param model, robot: names or paths of their files. :param checkpoint: directory, empty for that of the model file.
    :param blend_time, start_time, command_lifetime: seconds; see `ChunkBuffer`. :param when_empty: 'hold' or 'stop'.
    :param ensemble: see `ChunkBuffer`; below 0: that of the model file.
    :param continuation: real-time chunking, off by default.
    :param barge_in: what becomes of an unfinished answer when the next utterance comes.
    """

    model: str = 'tiny'
    checkpoint: str = ''
    robot: str = 'unitree_g1'
    device: str = 'cpu'
    dtype: str = 'float32'
    seed: int = 0
    engine: EngineConfig = field(default_factory=EngineConfig)
    answer: TextSettings = field(default_factory=lambda: TextSettings(queue_limit=8))
    speech: TextSettings = field(default_factory=TextSettings)
    memory: TextSettings = field(default_factory=lambda: TextSettings(queue_limit=1))
    subtask: TextSettings = field(default_factory=lambda: TextSettings(max_tokens=24, timeout=5.0, queue_limit=1))
    blend_time: float = 0.1
    start_time: float = 0.5
    ensemble: float = -1.0
    command_lifetime: float = 1.0
    when_empty: str = 'hold'
    continuation: ContinuationSettings = field(default_factory=ContinuationSettings)
    barge_in: BargeIn = BargeIn.SUPERSEDE


class Session:
    """
    The parts of a running suite.

    Threads: `engine` belongs to the thread that runs it (see worker.py); everything else here to the one thread that
    takes in observations and puts out commands.

    :param wrap: puts something between the engine and the model, such as what gives its work virtual time.
    :raises ConfigError: a name is unknown, a file is wrong, model and robot do not fit, the KV budget is too small.
    """

    def __init__(self, settings: SessionSettings, emit: Callable[[Event], None],
                 clock: Callable[[], float] = time.monotonic, observation_clock: Callable[[], int] = time.time_ns,
                 tracer: Tracer | None = None, progress: Progress | None = None,
                 wrap: Callable[[VLAModel], VLAModel] | None = None) -> None:
        model_file = read_model_file(settings.model)
        robot = load_robot(settings.robot)
        robot.layout(model_file.layout)  # refused before the weights are loaded, which takes its time
        _check_choice('dtype', settings.dtype, DTYPES)
        _check_choice('when_empty', settings.when_empty, [choice.value for choice in WhenEmpty])
        options = LoadOptions(Path(settings.checkpoint).expanduser() if settings.checkpoint else None,
                              DTYPES[settings.dtype], settings.device, settings.seed, progress,
                              admit=lambda spec: require_budget(settings.engine.cache_spec(spec),
                                                                settings.engine.kv_budget_mib))
        model = load_model(model_file, options)
        model = wrap(model) if wrap is not None else model
        self.spec = model.spec
        self.action = ActionTask(robot, model_file.layout, model.spec)
        if settings.continuation.method is not None:
            model = ContinuingModel(model, self.action, settings.continuation, observation_clock)
        self.engine = Engine(model, settings.engine, emit, clock, observation_clock, tracer)
        self.engine.warm_up(self.action.example())
        rest = [joint.rest for joint in robot.select(self.action.joints)]
        buffer = ChunkBuffer(self.action.joints, rest=rest, blend_ns=round(settings.blend_time * 1e9),
                             start_ns=round(settings.start_time * 1e9) if settings.blend_time else 0,
                             ensemble=model_file.ensemble if settings.ensemble < 0 else settings.ensemble,
                             lifetime_ns=round(settings.command_lifetime * 1e9),
                             when_empty=WhenEmpty(settings.when_empty))
        self.commands = CommandStream(robot, buffer)
        ids = itertools.count(1)
        self.texts = {}
        for name in PRIORITIES:
            text: TextSettings = getattr(settings, name)
            sampling = SamplingParams(text.max_tokens, text.temperature, text.top_p, settings.seed, text.stop)
            self.texts[name] = TextTask(name, PRIORITIES[name], sampling, text.timeout, ids, text.queue_limit,
                                        drop_oldest=name in NEWEST_ONLY)
        self.barge_in = settings.barge_in
        self.sentences = SentenceStream()
        self.notes = NoteCollector()
        self.subtasks = SubtaskCollector()

    def utterance(self, now: float, text: str, notes: Sequence[str] = ()) -> TextRequest:
        """
        Return the request for an answer to what somebody said.

        :param now: seconds of the engine's clock. :param notes: what memory has about it, most relevant first.
        """
        return self.texts['answer'].request(now, text, conversation=UTTERANCES, barge_in=self.barge_in, notes=notes)

    def forget(self) -> None:
        """Drop chunks and unfinished texts, on this side of the engine."""
        self.commands.clear()
        self.sentences.clear()
        self.notes.clear()
        self.subtasks.clear()


def _check_choice(name: str, value: str, choices: Iterable[str]) -> None:
    if value not in choices:
        raise ConfigError(f'{name} is {value!r}: choose one of {list(choices)}')
