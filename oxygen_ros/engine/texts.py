"""The texts of the engine: queues them, starts them on frames, decodes all that run in one batch."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from oxygen_ros.engine.config import EngineConfig
from oxygen_ros.engine.conversation import Conversations
from oxygen_ros.engine.cost_model import Stage
from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.engine.meter import Meter
from oxygen_ros.engine.prompt_builder import PromptBuilder
from oxygen_ros.engine.requests import AdmissionError, BargeIn, Event, FinishReason, Refusal, TextRequest
from oxygen_ros.engine.sampling import choose_tokens
from oxygen_ros.engine.statistics import Statistics
from oxygen_ros.engine.text_stream import TextStream
from oxygen_ros.models.interface import PolicyInput, VLAModel

logger = logging.getLogger(__name__)


class Texts:
    """
    Texts that wait and texts that run, the latter ascending by slot.

    A request that makes the model raise ends with ERROR; the others go on.
    """

    def __init__(self, model: VLAModel, cache: UnifiedKVCache, meter: Meter, config: EngineConfig,
                 statistics: Statistics, emit: Callable[[Event], None]) -> None:
        self._model, self._cache, self._meter, self._config = model, cache, meter, config
        self._statistics, self._emit = statistics, emit
        self._suppressed = (torch.tensor(model.spec.suppressed_tokens, device=model.spec.device)
                            if model.spec.suppressed_tokens else None)
        self._prompts = PromptBuilder(model, config.branch_tokens)
        self.conversations = Conversations(config.history)
        self.waiting: list[TextStream] = []
        self.running: list[TextStream] = []

    def submit(self, request: TextRequest) -> None:
        """Queue a text; see `Engine.submit`."""
        if any(stream.request.request_id == request.request_id for stream in (*self.waiting, *self.running)):
            raise ValueError(f'request id {request.request_id} is in use')
        if not self._model.spec.text_head_trained:
            raise AdmissionError(Refusal.NO_TEXT_HEAD, f'model {self._model.spec.name} was never trained to speak, its '
                                 'words would be garbage: use a checkpoint that was, and say text_head_trained: true '
                                 'in its model file')
        if request.own_prefix and not self._model.spec.has_subtasks:
            raise AdmissionError(Refusal.NO_SUBTASKS, f'model {self._model.spec.name} knows no subtasks: set '
                                 'subtask.rate to 0, or give it a subtask_prompt in its model file')
        prompt, left_out = self._prompts.build(request, self.conversations.exchanges(request.conversation))
        older = self._of_conversation(request.conversation)
        superseded = older if request.barge_in is BargeIn.SUPERSEDE else []
        queued = [stream for stream in self.waiting if stream.request.task == request.task and stream not in superseded]
        if len(queued) >= request.queue_limit:
            if not request.drop_oldest:
                raise AdmissionError(Refusal.QUEUE_FULL, f'{len(queued)} requests of task {request.task} wait already: '
                                     'ask less often or give text more time')
            self._statistics.counters.notes_dropped += not request.own_prefix
            self.finish(min(queued, key=lambda stream: stream.request.arrived), FinishReason.DROPPED,
                        f'a newer request of task {request.task} took its place')
        stream = TextStream(request, prompt, self._model.tokenizer, left_out, self._config.repetitions)
        stream.blocked = request.barge_in is BargeIn.QUEUE and bool(older)
        if superseded:
            # Those that wait for others first, so that the end of these does not set them free.
            for old in sorted(superseded, key=lambda old: not old.blocked):
                self.finish(old, FinishReason.SUPERSEDED, f'request {request.request_id} took its place')
            # What was said until now belongs to the conversation.
            stream.prompt, stream.left_out = self._prompts.build(
                request, self.conversations.exchanges(request.conversation))
        self.waiting.append(stream)

    def find(self, request_id: int) -> list[TextStream]:
        """Return the stream of a request, or all with id 0."""
        return [s for s in (*self.waiting, *self.running) if request_id in (0, s.request.request_id)]

    def expired(self, now: float) -> bool:
        """Whether the time limit of any text is over."""
        return any(stream.expired(now) for stream in (*self.waiting, *self.running))

    @property
    def decoding(self) -> list[TextStream]:
        """The running texts whose prompt is in their branch."""
        return [stream for stream in self.running if stream.prompted == len(stream.prompt)]

    def start(self, streams: list[TextStream], frame: int, inputs: PolicyInput, piece: int | None = None) -> None:
        """
        Start waiting texts on a frame: extend all their prompts at once.

        :param piece: most tokens of a prompt to begin with.
        """
        for stream in streams:
            stream.start(self._cache.open_branch(frame), inputs)
            self.waiting.remove(stream)
            self.running.append(stream)
        self.running.sort(key=lambda stream: stream.slot)
        unprompted = [stream for stream in streams if not stream.prompt]
        prompted = sorted((stream for stream in streams if stream.prompt), key=lambda stream: stream.slot)
        if unprompted:
            self._begin_unprompted(unprompted, frame)
        if prompted:
            self._extend(Stage.EXTEND, prompted, [stream.prompt[:piece] for stream in prompted])

    def extend_prompt(self, stream: TextStream, tokens: int) -> None:
        """Take in the next tokens of a running text's prompt."""
        self._extend(Stage.EXTEND, [stream], [stream.prompt_left[:tokens]])

    def step(self) -> None:
        """Decode one token of every running text that has its prompt."""
        streams = self.decoding
        self._extend(Stage.DECODE, streams, [[stream.last_token] for stream in streams])

    def fail(self, stream: TextStream, error: Exception) -> None:
        """End a text that made the model raise."""
        logger.error('request %d failed', stream.request.request_id, exc_info=error)
        self.finish(stream, FinishReason.ERROR, f'{type(error).__name__}: {error}')

    def finish(self, stream: TextStream, reason: FinishReason, message: str = '') -> None:
        """End a text; its slot is free at once."""
        if stream in self.waiting:
            self.waiting.remove(stream)
        else:
            self.running.remove(stream)
            self._cache.close_branch(stream.slot, wipe=reason is FinishReason.ERROR)
        ended_itself = reason in (FinishReason.STOP, FinishReason.LENGTH)
        self._statistics.counters.texts_finished += ended_itself
        self._statistics.counters.texts_unfinished += not ended_itself
        self._emit(stream.take(self._meter.clock(), reason, message))
        if stream.request.conversation:
            self.conversations.ended(stream.request.conversation, stream.request.text, stream.said, reason)
            self._unblock(stream.request.conversation)

    def _of_conversation(self, name: str) -> list[TextStream]:
        return [stream for stream in (*self.waiting, *self.running) if name and stream.request.conversation == name]

    def _unblock(self, conversation: str) -> None:
        """Let the next question of a conversation go when nothing is left that it has to wait for."""
        streams = self._of_conversation(conversation)
        if not streams or not all(stream.blocked for stream in streams):
            return
        stream = streams[0]
        stream.blocked = False
        try:
            stream.prompt, stream.left_out = self._prompts.build(
                stream.request, self.conversations.exchanges(conversation))
        except AdmissionError as error:
            self.finish(stream, FinishReason.ERROR, str(error))

    def _begin_unprompted(self, streams: list[TextStream], frame: int) -> None:
        """Choose the first token of texts without a prompt: it is read from the prefix."""
        try:
            logits = self._model.prefix_logits(self._cache, frame)
        except Exception as error:  # noqa: B902 - as in _extend
            for stream in streams:
                self.fail(stream, error)
            return
        self._hand_out(streams, self._choose(streams, logits.expand(len(streams), -1).clone()))

    def _extend(self, stage: Stage, streams: list[TextStream], tokens: list[list[int]]) -> None:
        """Add tokens to the branches of streams, choose the next token of each and hand out new text."""
        start = self._meter.clock()
        try:
            logits = self._model.extend(self._cache, [stream.slot for stream in streams], tokens)
        except Exception as error:  # noqa: B902 - whatever a model raises, the other requests go on
            if len(streams) == 1:
                self.fail(streams[0], error)
            else:
                # Lengths advance only after success, so that each can be tried again alone.
                for stream, row in zip(streams, tokens):
                    self._extend(stage, [stream], [row])
            return
        if stage is Stage.EXTEND:
            for stream, row in zip(streams, tokens):
                stream.prompted += len(row)
            if streams[0].prompt_left:  # a piece of one prompt: nothing follows yet
                self._meter.measured(stage, len(tokens[0]), start, branches=1)
                return
        chosen = self._choose(streams, logits)  # part of the step: sampling takes its time too
        self._meter.measured(stage, len(tokens) * max(map(len, tokens)), start, branches=len(streams))
        self._hand_out(streams, chosen)

    def _choose(self, streams: list[TextStream], logits: torch.Tensor) -> list[int | None | Exception]:
        """Choose a token for each stream: None where the logits are undefined, what was raised where it failed."""
        try:
            return choose_tokens([stream.sampler for stream in streams], logits, self._suppressed)
        except Exception as error:  # noqa: B902 - as in _extend
            return [error] * len(streams)

    def _hand_out(self, streams: list[TextStream], tokens: list[int | None | Exception]) -> None:
        """Take in the next token of each stream; hand out new text, or the end."""
        now = self._meter.clock()
        self._statistics.decoded(now, len(streams))
        for stream, token in zip(streams, tokens):
            try:
                self._take_in(stream, token, now)
            except Exception as error:  # noqa: B902 - as in _extend
                self.fail(stream, error)

    def _take_in(self, stream: TextStream, token: int | None | Exception, now: float) -> None:
        if isinstance(token, Exception):
            raise token
        if token is None:
            self.finish(stream, FinishReason.ERROR, 'the logits of the model are NaN or infinite')
            return
        if token in self._model.spec.stop_tokens:
            self.finish(stream, FinishReason.STOP)
            return
        reason = stream.push(token)
        # The token just chosen takes a place of the branch when it is fed back.
        if reason is None and self._cache.branch_room(stream.slot) < 1:
            reason = FinishReason.LENGTH
        if reason is FinishReason.REPETITION:
            self.finish(stream, reason, f'the same {stream.repeated} tokens came {self._config.repetitions} times or '
                        'more in a row')
        elif reason is not None:
            self.finish(stream, reason)
        elif stream.due(now, self._config.stream_interval):
            self._emit(stream.take(now))
