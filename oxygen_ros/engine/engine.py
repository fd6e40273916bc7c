"""
The engine: owns the model and all KV memory, and runs what the scheduler plans.

Threads: none of its own. All methods are called by one thread (see worker.py), or by a test.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
import logging
import math
import time

import torch

from oxygen_ros.engine.cost_model import CostModel, Stage
from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.engine.requests import (ActionChunk, ActionSkipped, AdmissionError, Event, FinishReason, Refusal,
                                        TextRequest)
from oxygen_ros.engine.sampling import choose_tokens
from oxygen_ros.engine.scheduler import (CyclePlan, Mode, plan_cycle, Running, SchedulerConfig, SchedulerState, Waiting)
from oxygen_ros.engine.statistics import EngineStatus, Statistics
from oxygen_ros.engine.text_stream import TextStream
from oxygen_ros.engine.trace import Tracer
from oxygen_ros.models.interface import PolicyInput, VLAModel

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EngineConfig:
    """
    :param max_branches: texts that decode at the same time; :param branch_tokens: most tokens of one (prompt and text).
    :param max_frames: frames kept; 0 is max_branches + 2, which never has to end a text early.
    :param kv_budget_mib: hard limit of the KV cache in MiB.
    :param denoise_steps: flow-matching steps; 0 is the model's default. :param seed: of the action noise.
    :param max_frame_age: seconds (of the observation clock) beyond which no action is made from a frame.
    :param stream_interval: shortest time in seconds between two pieces of one text; the first comes at once.
    """

    scheduler: SchedulerConfig = SchedulerConfig()
    max_branches: int = 8
    branch_tokens: int = 128
    max_frames: int = 0
    kv_budget_mib: float = 1024.0
    denoise_steps: int = 0
    seed: int = 0
    max_frame_age: float = 0.5
    stream_interval: float = 0.05


@dataclass(frozen=True)
class PrefilledFrame:
    """The newest prefilled frame; the engine holds one reference to its slot. `instruction` is what it was made with."""

    slot: int
    inputs: PolicyInput
    instruction: str


class Engine:
    """
    Acts, speaks and remembers on one model.

    :param emit: called with every event, in the engine's thread.
    :param clock: seconds, monotonic; deadlines, arrivals and expiries are in this clock.
    :param observation_clock: nanoseconds in the clock of the observations' stamps (the node clock).
    """

    def __init__(self, model: VLAModel, config: EngineConfig, emit: Callable[[Event], None],
                 clock: Callable[[], float] = time.monotonic,
                 observation_clock: Callable[[], int] = time.time_ns, tracer: Tracer | None = None) -> None:
        self.model, self.config = model, config
        frames = config.max_frames or config.max_branches + 2
        self.cache = UnifiedKVCache(model.spec.cache_spec(frames, config.max_branches, config.branch_tokens),
                                    config.kv_budget_mib)
        self.costs = CostModel()
        self._emit, self._clock, self._observation_clock = emit, clock, observation_clock
        self._tracer = tracer or Tracer()
        self._suppressed = (torch.tensor(model.spec.suppressed_tokens, device=model.spec.device)
                            if model.spec.suppressed_tokens else None)
        self._observation: PolicyInput | None = None
        self._instruction = ''
        self._pinned: PrefilledFrame | None = None
        self._deadlines: deque[float] = deque()  # of actions that are due, ascending
        self._waiting: list[TextStream] = []
        self._running: list[TextStream] = []  # ascending by slot
        self._steps_done = 0
        self.statistics = Statistics(clock())

    # -- input -------------------------------------------------------------------------------------------------------

    def observe(self, inputs: PolicyInput) -> None:
        """Take in an observation. Only the newest is kept."""
        self.statistics.counters.frames_received += 1
        self._observation = inputs

    def set_instruction(self, instruction: str) -> None:
        """Set what the robot shall do, from the next action on."""
        self._instruction = instruction

    def request_action(self, deadline: float) -> None:
        """Ask for one action chunk by a deadline, later than those asked for before."""
        self._deadlines.append(deadline)
        self._tracer.mark('deadline', deadline)

    def cancel_action(self) -> None:
        """Want no action any more."""
        self._deadlines.clear()

    def submit(self, request: TextRequest) -> None:
        """
        Queue a text.

        :raises AdmissionError: the prompt does not fit a branch, or too many of its task wait.
        """
        prompt = self.model.branch_prompt(request.task, request.text)
        if len(prompt) >= self.config.branch_tokens:
            raise AdmissionError(Refusal.PROMPT_TOO_LONG, f'the prompt has {len(prompt)} tokens, a branch holds '
                                 f'{self.config.branch_tokens}: shorten the text or raise branch_tokens')
        queued = [stream for stream in self._waiting if stream.request.task == request.task]
        if len(queued) >= request.queue_limit:
            if not request.drop_oldest:
                raise AdmissionError(Refusal.QUEUE_FULL, f'{len(queued)} requests of task {request.task} wait already: '
                                     'ask less often or give text more time')
            oldest = min(queued, key=lambda stream: stream.request.arrived)
            self.statistics.counters.notes_dropped += 1
            self._finish(oldest, FinishReason.DROPPED, f'a newer request of task {request.task} took its place')
        self._waiting.append(TextStream(request, prompt, self.model.tokenizer))

    def cancel(self, request_id: int = 0, reason: FinishReason = FinishReason.CANCELLED) -> list[int]:
        """End one text, or all with id 0; its slot is free at once. Return the ids that were ended."""
        streams = [s for s in (*self._waiting, *self._running) if request_id in (0, s.request.request_id)]
        for stream in streams:
            self._finish(stream, reason)
        return [stream.request.request_id for stream in streams]

    def forget_observations(self) -> None:
        """Drop the newest observation and its frame, as after a jump of the observation clock; running texts go on."""
        self._observation = None
        self._unpin()

    # -- work --------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def run_cycle(self, poll: Callable[[], bool] = lambda: False) -> float | None:
        """
        Plan once and do what was planned.

        :param poll: called between decode steps; takes in what arrived (cancellations, new requests) and returns
            whether a new plan is needed.
        :returns: None when something was done, else the time until which there is nothing to do (may be infinite).
        """
        plan = plan_cycle(self._state(), self._clock(), self.costs, self.config.scheduler)
        for request_id, reason in plan.end:
            self.cancel(request_id, reason)
        if plan.act:
            self._act()
        elif plan.start:
            self._start(plan)
        elif plan.decode_steps is None or plan.decode_steps > 0:
            self._decode(plan, poll)
        elif not plan.end:
            return plan.wait_until
        return None

    @torch.inference_mode()
    def warm_up(self, inputs: PolicyInput, rounds: int = 3) -> None:
        """
        Measure every stage, so that the first deadlines are predicted, not guessed.

        The first round is not counted: it pays for memory and code that later ones find ready. Leaves no frame, branch
        or statistics behind.

        :param inputs: an observation like those to come (same cameras and state), for example black pictures.
        """
        noise = torch.zeros((self.model.spec.horizon, self.model.spec.action_dim))
        sizes = [size for size in (1, 2, 4, 8, 16, 32) if size <= self.config.max_branches]
        for number in range(rounds + 1):
            frame = self._prefill(inputs)
            self._timed(Stage.DENOISE, 1, lambda: self.model.denoise(self.cache, frame, noise, self._denoise_steps()))
            for size in sizes:
                slots = [self.cache.open_branch(frame) for _ in range(size)]
                prompt = [0] * min(8, self.config.branch_tokens - 2)
                self._timed(Stage.EXTEND, len(prompt) * size,
                            lambda: self.model.extend(self.cache, slots, [prompt] * size))
                for _ in range(2):
                    self._timed(Stage.DECODE, size, lambda: self.model.extend(self.cache, slots, [[0]] * size))
                for slot in slots:
                    self.cache.close_branch(slot)
            self.cache.release_frame(frame)
            if number == 0:
                self.costs = CostModel()
        self.cache.peak_bytes = 0
        self.statistics.reset(self._clock())

    def end(self) -> None:
        """Cancel everything, forget the frames and want no action; the model and the pools stay."""
        self.cancel()
        self.cancel_action()
        self.forget_observations()

    def close(self) -> None:
        """Close the trace file."""
        self._tracer.close()

    def check_integrity(self) -> None:
        """Prove that no slot of the cache is lost or shared by mistake; see `UnifiedKVCache.check_integrity`."""
        self.cache.check_integrity({self._pinned.slot: 1} if self._pinned else {})

    def status(self) -> EngineStatus:
        """Return the figures of the last seconds."""
        cache, costs = self.cache, self.costs
        return self.statistics.snapshot(
            self._clock(), running=len(self._running), waiting=len(self._waiting),
            frames_resident=cache.spec.frames - cache.free_frames, kv_bytes=cache.used_bytes(),
            kv_bytes_peak=cache.peak_bytes, kv_bytes_allocated=cache.spec.total_bytes(),
            kv_bytes_budget=cache.budget_bytes, prefill=costs.predict(Stage.PREFILL, deviations=0),
            denoise=costs.predict(Stage.DENOISE, deviations=0),
            decode_step=costs.predict(Stage.DECODE, max(1, len(self._running)), deviations=0))

    # -- stages ------------------------------------------------------------------------------------------------------

    def _act(self) -> None:
        self._steps_done = 0
        deadline = self._deadlines.popleft()
        while self._deadlines and deadline < self._clock():
            # Overload: one chunk for the newest deadline serves better than one for each that is past.
            self.statistics.counters.deadline_misses += 1
            deadline = self._deadlines.popleft()
        inputs = self._observation
        if inputs is None:
            self._emit(ActionSkipped(deadline, 'no frame has arrived'))
            return
        age = (self._observation_clock() - inputs.stamp_ns) / 1e9
        if age > self.config.max_frame_age:
            self.statistics.counters.stale_frames += 1
            self._emit(ActionSkipped(deadline, f'the newest frame is {age:.2f} s old, max_frame_age is '
                                               f'{self.config.max_frame_age:.2f} s'))
            return
        started = self._clock()
        if not self._is_prefilled(inputs):
            self._pin(inputs)
        frame = self._pinned.slot
        # Seeded by the frame: the same in every mode, in replay and live.
        generator = torch.Generator().manual_seed(self.config.seed * 1_000_003 + inputs.number)
        noise = torch.randn((self.model.spec.horizon, self.model.spec.action_dim), generator=generator)
        actions = self._timed(Stage.DENOISE, 1,
                              lambda: self.model.denoise(self.cache, frame, noise, self._denoise_steps()),
                              frame=inputs.number)
        finished = self._clock()
        self._emit(ActionChunk(inputs, actions.numpy(), deadline, started, finished))
        published = self._clock()
        self._tracer.span('publish', finished, published, frame=inputs.number)
        self.statistics.chunk(published, published - deadline, published - started)

    def _start(self, plan: CyclePlan) -> None:
        by_id = {stream.request.request_id: stream for stream in self._waiting}
        streams = [by_id[request_id] for request_id in plan.start]
        private = self.config.scheduler.mode is Mode.ISOLATED
        if private:
            frame, inputs = self._prefill(self._observation), self._observation
        else:
            if plan.prefill:
                self._pin(self._observation)
            frame, inputs = self._pinned.slot, self._pinned.inputs
        for stream in streams:
            stream.start(self.cache.open_branch(frame), inputs)
            self._waiting.remove(stream)
            self._running.append(stream)
        self._running.sort(key=lambda stream: stream.slot)
        if private:
            self.cache.release_frame(frame)  # the branches hold it now
        unprompted = [stream for stream in streams if not stream.prompt]
        if unprompted:
            self._choose(unprompted, self.model.prefix_logits(self.cache, frame).expand(len(unprompted), -1).clone())
        prompted = sorted((stream for stream in streams if stream.prompt), key=lambda stream: stream.slot)
        if prompted:
            self._extend(Stage.EXTEND, sum(len(stream.prompt) for stream in prompted), prompted,
                         [stream.prompt for stream in prompted])

    def _decode(self, plan: CyclePlan, poll: Callable[[], bool]) -> None:
        steps = math.inf if plan.decode_steps is None else plan.decode_steps
        while steps > 0 and self._running:
            self._extend(Stage.DECODE, len(self._running), list(self._running),
                         [[stream.last_token] for stream in self._running])
            self._steps_done += 1
            steps -= 1
            changed = poll()
            now = self._clock()
            if changed and not plan.uninterrupted or any(s.expired(now) for s in self._running):
                break
            if now + self.costs.predict(Stage.DECODE, len(self._running)) > plan.decode_until:
                break
        overrun = self._clock() - plan.decode_until
        self.statistics.counters.late_decodes += overrun > self.costs.predict(Stage.DECODE, max(1, len(self._running)))

    def _extend(self, stage: Stage, size: int, streams: list[TextStream], tokens: list[list[int]]) -> None:
        slots = [stream.slot for stream in streams]
        try:
            logits = self._timed(stage, size, lambda: self.model.extend(self.cache, slots, tokens),
                                 branches=len(streams))
        except Exception as error:  # noqa: B902 - whatever a model raises, the other requests go on
            if len(streams) == 1:
                logger.exception('request %d failed', streams[0].request.request_id)
                self._finish(streams[0], FinishReason.ERROR, f'{type(error).__name__}: {error}')
                return
            # Lengths advance only after success, so that each can be tried again alone.
            for stream, row in zip(streams, tokens):
                self._extend(stage, len(row) if stage is Stage.EXTEND else 1, [stream], [row])
            return
        self._choose(streams, logits)

    def _choose(self, streams: list[TextStream], logits: torch.Tensor) -> None:
        """Sample the next token of each stream and hand out new text."""
        chosen = choose_tokens([stream.sampler for stream in streams], logits, self._suppressed)
        now = self._clock()
        self.statistics.decoded(now, len(streams))
        for stream, token in zip(streams, chosen):
            if token in self.model.spec.stop_tokens:
                self._finish(stream, FinishReason.STOP)
                continue
            stream.push(token)
            # The token just chosen takes a place of the branch when it is fed back.
            if stream.tokens >= stream.request.sampling.max_tokens or self.cache.branch_room(stream.slot) < 1:
                self._finish(stream, FinishReason.LENGTH)
            elif stream.due(now, self.config.stream_interval):
                self._emit(stream.take(now))

    def _finish(self, stream: TextStream, reason: FinishReason, message: str = '') -> None:
        if stream in self._waiting:
            self._waiting.remove(stream)
        else:
            self._running.remove(stream)
            self.cache.close_branch(stream.slot)
        ended_itself = reason in (FinishReason.STOP, FinishReason.LENGTH)
        self.statistics.counters.texts_finished += ended_itself
        self.statistics.counters.texts_unfinished += not ended_itself
        self._emit(stream.take(self._clock(), reason, message))

    def _prefill(self, inputs: PolicyInput) -> int:
        """Prefill an observation into a free slot; the caller owns the reference."""
        slot = self.cache.acquire_frame(inputs.number)
        try:
            self._timed(Stage.PREFILL, 1, lambda: self.model.prefill(inputs, self._instruction, self.cache, slot),
                        frame=inputs.number)
        except BaseException:
            self.cache.release_frame(slot)
            raise
        return slot

    def _pin(self, inputs: PolicyInput) -> None:
        """Prefill an observation and keep its frame as the newest one."""
        slot = self._prefill(inputs)
        self._unpin()
        self._pinned = PrefilledFrame(slot, inputs, self._instruction)

    def _unpin(self) -> None:
        if self._pinned is not None:
            self.cache.release_frame(self._pinned.slot)
            self._pinned = None

    def _timed(self, stage: Stage, size: int, work: Callable[[], object], **arguments: object) -> object:
        start = self._clock()
        result = work()
        if self.model.spec.device.startswith('cuda'):
            torch.cuda.synchronize()
        end = self._clock()
        self.costs.observe(stage, size, end - start)
        self._tracer.span(stage.value, start, end, **arguments)
        return result

    # -- state -------------------------------------------------------------------------------------------------------

    def _denoise_steps(self) -> int:
        return self.config.denoise_steps or self.model.spec.denoise_steps

    def _is_prefilled(self, inputs: PolicyInput) -> bool:
        pinned = self._pinned
        return (pinned is not None and pinned.inputs is inputs
                and (pinned.instruction == self._instruction or not self.model.spec.prefix_has_instruction))

    def _state(self) -> SchedulerState:
        newest, pinned = self._observation, self._pinned
        ready = (pinned is not None and newest is not None
                 and (newest.stamp_ns - pinned.inputs.stamp_ns) / 1e9 <= self.config.scheduler.text_frame_age)
        return SchedulerState(
            deadline=self._deadlines[0] if self._deadlines else None, has_observation=newest is not None,
            action_prefilled=newest is not None and self._is_prefilled(newest), text_frame_ready=ready,
            waiting=tuple(Waiting(s.request.request_id, (s.request.priority, s.request.arrived), len(s.prompt),
                                  s.request.expires) for s in self._waiting),
            running=tuple(Running(s.request.request_id, s.inputs.number, s.request.expires) for s in self._running),
            free_branches=self.cache.free_branches, free_frames=self.cache.free_frames, steps_done=self._steps_done)
