"""
The engine: owns the model and all KV memory, and runs what the scheduler plans.

Threads: none of its own. All methods are called by one thread (see worker.py), or by a test.
"""

from __future__ import annotations

import bisect
import logging
import math
import time
from collections.abc import Callable

import torch

from oxygen_ros.engine.compiling import use_compiled
from oxygen_ros.engine.config import EngineConfig
from oxygen_ros.engine.cost_model import CostModel, Stage
from oxygen_ros.engine.frames import Frames
from oxygen_ros.engine.graphs import capture_for, use_graphs
from oxygen_ros.engine.kv_cache import UnifiedKVCache
from oxygen_ros.engine.meter import Meter, warm_up
from oxygen_ros.engine.requests import ActionChunk, ActionFailed, ActionSkipped, Event, FinishReason, TextRequest
from oxygen_ros.engine.scheduler import CyclePlan, Running, SchedulerState, Waiting, plan_cycle
from oxygen_ros.engine.statistics import EngineStatus, Statistics
from oxygen_ros.engine.text_stream import TextStream
from oxygen_ros.engine.texts import Texts
from oxygen_ros.engine.trace import Tracer
from oxygen_ros.models.interface import PolicyInput, VLAModel
from oxygen_ros.models.packing import pack

logger = logging.getLogger(__name__)

PATIENCE = 4  # actions that texts wait for in vain, until a slow one is forgotten


class Engine:
    """
    Acts, speaks and remembers on one model.

    :param emit: called with every event, in the engine's thread. It must not call the engine.
    :param clock: seconds, monotonic; deadlines, arrivals and expiries are in this clock.
    :param observation_clock: nanoseconds in the clock of the observations' stamps (the node clock).
    """

    def __init__(self, model: VLAModel, config: EngineConfig, emit: Callable[[Event], None],
                 clock: Callable[[], float] = time.monotonic,
                 observation_clock: Callable[[], int] = time.time_ns, tracer: Tracer | None = None) -> None:
        self.model, self.config, self.clock = model, config, clock
        self._emit, self._observation_clock = emit, observation_clock
        self.cache = UnifiedKVCache(config.cache_spec(model.spec), config.kv_budget_mib)
        self.statistics = Statistics(clock())
        self._meter = Meter(model.spec.device, clock, tracer or Tracer())
        self._frames = Frames(model, self.cache, self._meter)
        self._texts = Texts(model, self.cache, self._meter, config, self.statistics, emit)
        self._observation: PolicyInput | None = None
        self._instruction = ''
        self._deadlines: list[float] = []  # of the actions that were asked for, ascending
        self._last_deadline: float | None = None  # None while no action is wanted
        self._period: float | None = None  # between the last two
        self._failures = 0  # actions in a row of which the model raised
        self._steps_done = 0  # decode steps since the last action
        self._text_advanced = False  # any text started or decoded since the last action
        self._starved = 0  # actions in a row between which texts waited in vain

    # -- input -------------------------------------------------------------------------------------------------------

    def observe(self, inputs: PolicyInput) -> None:
        """Take in an observation. Only the newest is kept."""
        self.statistics.counters.frames_received += 1
        self._observation = inputs

    def set_instruction(self, instruction: str) -> None:
        """Set what the robot shall do, from the next action on."""
        self._instruction = instruction

    def request_action(self, deadline: float) -> None:
        """Ask for one action chunk by a deadline."""
        if self._last_deadline is not None:
            self._period = deadline - self._last_deadline
        self._last_deadline = deadline
        bisect.insort(self._deadlines, deadline)
        self._meter.tracer.mark('deadline', deadline)

    def cancel_action(self) -> None:
        """Want no action any more; texts may use all the time."""
        self._deadlines.clear()
        self._last_deadline = self._period = None

    def submit(self, request: TextRequest) -> None:
        """
        Queue a text.

        :raises AdmissionError: the prompt does not fit a branch, too many of its task wait, or the model cannot speak.
        :raises ValueError: a request with this id waits or runs already.
        """
        self._texts.submit(request)

    def cancel(self, request_id: int = 0, reason: FinishReason = FinishReason.CANCELLED) -> list[int]:
        """End one text, or all with id 0; its slot is free at once. Return the ids that were ended."""
        streams = self._texts.find(request_id)
        for stream in streams:
            self._texts.finish(stream, reason)
        return [stream.request.request_id for stream in streams]

    def forget_observations(self) -> None:
        """Drop the newest observation and its frame, as after a jump of the observation clock; running texts go on."""
        self._observation = None
        self._frames.unpin()

    # -- work --------------------------------------------------------------------------------------------------------

    @torch.inference_mode()
    def run_cycle(self, poll: Callable[[], bool] = lambda: False) -> float | None:
        """
        Plan once and do what was planned.

        :param poll: called between decode steps; takes in what arrived (cancellations, new requests) and returns
            whether a new plan is needed.
        :returns: None when something was done, else the time until which there is nothing to do (may be infinite).
        """
        problem = self._action_problem()
        plan = plan_cycle(self._state(can_act=not problem), self.clock(), self.costs, self.config.scheduler)
        for request_id, reason in plan.end:
            self.cancel(request_id, reason)
        if plan.act:
            self._act(plan.skip, problem)
        elif plan.start:
            self._start(plan)
        elif plan.piece:
            self._extend_prompt(*plan.piece)
        elif plan.decode_steps is None or plan.decode_steps > 0:
            self._decode(plan, poll)
        elif not plan.end:
            return plan.wait_until
        return None

    @torch.inference_mode()
    def warm_up(self, inputs: PolicyInput, rounds: int = 3) -> None:
        """
        Pack the weights, choose what runs compiled and what replays graphs, and measure every stage, see
        `meter.warm_up`. Leaves no frame, branch or statistics behind.

        :param inputs: an observation like those to come (same cameras and state), for example black pictures.
        """
        def measure() -> CostModel:
            warm_up(self.model, self.cache, self._meter, inputs, self._instruction, self._denoise_steps(), rounds)
            return self.costs

        network = getattr(self.model, 'network', None)
        if isinstance(network, torch.nn.Module):
            pack(network, self.config.packing)
            use_compiled(self.config.compile, network, self.cache.spec.branches, measure)
            use_graphs(self.config.graphs, network, self.cache,
                       capture_for(self.config.graphs, self.model.spec.device), measure)
        else:
            measure()
        self.statistics.reset(self.clock())

    def begin(self, instruction: str) -> None:
        """Start a run: all counters from zero, and what the robot shall do."""
        self.statistics.reset(self.clock())
        self._failures = 0
        self.set_instruction(instruction)

    def end(self) -> None:
        """Cancel everything, forget the frames and want no action; the model and the pools stay."""
        self.cancel()
        self._texts.conversations.clear()
        self.cancel_action()
        self.forget_observations()

    def close(self) -> None:
        """Close the trace file."""
        self._meter.tracer.close()

    def check_integrity(self) -> None:
        """Prove that no slot of the cache is lost or shared by mistake; see `UnifiedKVCache.check_integrity`."""
        self.cache.check_integrity({self._frames.newest.slot: 1} if self._frames.newest else {})

    def status(self) -> EngineStatus:
        """Return the figures of the last seconds."""
        cache, costs = self.cache, self.costs
        return self.statistics.snapshot(
            self.clock(), running=len(self._texts.running), waiting=len(self._texts.waiting),
            frames_resident=cache.spec.frames - cache.free_frames, kv_bytes=cache.used_bytes(),
            kv_bytes_peak=cache.peak_bytes, kv_bytes_allocated=cache.spec.total_bytes(),
            kv_bytes_budget=cache.budget_bytes, prefill=costs.predict(Stage.PREFILL, deviations=0),
            denoise=costs.predict(Stage.DENOISE, deviations=0),
            decode_step=costs.predict(Stage.DECODE, max(1, len(self._texts.running)), deviations=0))

    # -- stages ------------------------------------------------------------------------------------------------------

    def _act(self, skip: int, problem: str) -> None:
        if not self._text_advanced and (self._texts.waiting or self._texts.running):
            self._starved += 1
            self.costs.relax((Stage.EXTEND, Stage.DECODE))
            if self._starved % PATIENCE == 0:
                self.costs.forget_slowest(Stage.ACTION)
        else:
            self._starved = 0
        self._steps_done, self._text_advanced = 0, False
        deadline = self._deadlines[skip]
        del self._deadlines[:skip + 1]
        self.statistics.counters.deadline_misses += skip
        inputs = self._observation
        if problem:
            self.statistics.counters.deadline_misses += 1
            self.statistics.counters.stale_frames += inputs is not None
            self._meter.tracer.mark('skip', self.clock(), deadline=deadline)
            self._emit(ActionSkipped(deadline, problem))
            return
        started, prefilled = self.clock(), self._frames.holds(inputs, self._instruction)
        try:
            actions = self._make_actions(inputs)
        except Exception as error:  # noqa: B902 - whatever a model raises, the next action may succeed
            self._action_failed(deadline, error)
            return
        self._failures = 0
        if not actions.isfinite().all():
            self.statistics.counters.action_failures += 1
            self._frames.unpin(wipe=True)
        finished = self.clock()
        self._emit(ActionChunk(inputs, actions.numpy(), deadline, started, finished))
        published = self.clock()
        self._meter.tracer.span('publish', finished, published, frame=inputs.number, deadline=deadline)
        self.statistics.chunk(published, published - deadline, published - started)
        if not prefilled:
            self.costs.observe(Stage.ACTION, 1, published - started)

    def _make_actions(self, inputs: PolicyInput) -> torch.Tensor:
        if not self._frames.holds(inputs, self._instruction):
            self._frames.pin(inputs, self._instruction)
        slot = self._frames.newest.slot
        # Seeded by the frame: the same in every mode, in replay and live.
        generator = torch.Generator().manual_seed((self.config.seed * 1_000_003 + inputs.number) % 2**63)
        noise = torch.randn((self.model.spec.horizon, self.model.spec.action_dim), generator=generator)
        return self._meter.timed(Stage.DENOISE, 1,
                                 lambda: self.model.denoise(self.cache, slot, noise, self._denoise_steps()),
                                 frame=inputs.number)

    def _action_failed(self, deadline: float, error: Exception) -> None:
        """Count an action of which the model raised, and go on without it, unless there were too many in a row."""
        self._failures += 1
        self.statistics.counters.action_failures += 1
        self.statistics.counters.deadline_misses += 1
        self._frames.unpin(wipe=True)  # what made the model raise may lie in it
        if isinstance(error, torch.cuda.OutOfMemoryError):
            torch.cuda.empty_cache()
        if self._failures > self.config.failures_allowed:
            raise error
        if self._failures == 1:
            logger.error('an action failed, the next one is tried', exc_info=error)
        self._emit(ActionFailed(deadline, self._observation.number, f'{type(error).__name__}: {error}'))

    def _start(self, plan: CyclePlan) -> None:
        self._text_advanced = True
        streams = [stream for request_id in plan.start for stream in self._texts.find(request_id)]
        if plan.own_prefix:
            self._start_on_own_prefix(streams)
            return
        if plan.prefill:
            try:
                self._frames.pin(self._observation, self._instruction)
            except Exception as error:  # noqa: B902 - whatever a model raises, the other requests go on
                for stream in streams:
                    self._texts.fail(stream, error)
                return
        self._texts.start(streams, self._frames.newest.slot, self._frames.newest.inputs,
                          plan.piece[1] if plan.piece else None)

    def _extend_prompt(self, request_id: int, tokens: int) -> None:
        self._text_advanced = True
        for stream in self._texts.find(request_id):
            self._texts.extend_prompt(stream, tokens)

    def _start_on_own_prefix(self, streams: list[TextStream]) -> None:
        inputs = self._observation
        for stream in streams:
            subtask = stream.request.own_prefix
            try:
                slot = self._frames.prefill(inputs, stream.request.text if subtask else self._instruction, subtask)
            except Exception as error:  # noqa: B902 - as above
                self._texts.fail(stream, error)
                continue
            self._texts.start([stream], slot, inputs)
            self.cache.release_frame(slot)  # the branch holds it now

    def _decode(self, plan: CyclePlan, poll: Callable[[], bool]) -> None:
        texts = self._texts
        steps = math.inf if plan.decode_steps is None else plan.decode_steps
        self._text_advanced = True
        while steps > 0 and (before := len(texts.decoding)):
            texts.step()
            self._steps_done += 1
            steps -= 1
            changed = poll()
            now = self.clock()
            if changed or texts.expired(now):
                break
            left = len(texts.decoding)
            if texts.waiting and left < before:
                break  # the slot that became free may serve the next
            if now + self.costs.predict(Stage.DECODE, left) > plan.decode_until:
                break
        step = self.costs.predict(Stage.DECODE, max(1, len(texts.decoding)))
        self.statistics.counters.late_decodes += self.clock() - plan.act_by > step

    # -- state -------------------------------------------------------------------------------------------------------

    @property
    def costs(self) -> CostModel:
        """What each stage is expected to take."""
        return self._meter.costs

    def _denoise_steps(self) -> int:
        return self.config.denoise_steps or self.model.spec.denoise_steps

    def _action_problem(self) -> str:
        """Return why the newest observation cannot be acted on; empty if it can."""
        if self._observation is None:
            return 'no frame has arrived'
        age, limit = (self._observation_clock() - self._observation.stamp_ns) / 1e9, self.config.max_frame_age
        if age > limit:
            return f'the newest frame is {age:.2f} s old, max_frame_age is {limit:.2f} s'
        if age < -limit:  # nobody could tell how old it is
            return f'the newest frame is stamped {-age:.2f} s in the future, max_frame_age is {limit:.2f} s'
        return ''

    def _state(self, can_act: bool) -> SchedulerState:
        observation, newest, cache = self._observation, self._frames.newest, self.cache
        ready = (newest is not None and observation is not None
                 and abs(observation.stamp_ns - newest.inputs.stamp_ns) / 1e9 <= self.config.scheduler.text_frame_age)
        return SchedulerState(
            deadlines=tuple(self._deadlines), acting=self._last_deadline is not None,
            expected=self._last_deadline + self._period if self._period is not None else None, period=self._period,
            has_observation=observation is not None, can_act=can_act, text_frame_ready=ready,
            action_prefilled=observation is not None and self._frames.holds(observation, self._instruction),
            waiting=tuple(Waiting(s.request.request_id, (s.request.priority, s.request.arrived), len(s.prompt),
                                  s.request.expires, s.request.own_prefix, s.blocked) for s in self._texts.waiting),
            running=tuple(Running(s.request.request_id, cache.frames[cache.branches[s.slot].frame].key,
                                  s.request.expires, len(s.prompt) - s.prompted) for s in self._texts.running),
            free_branches=cache.free_branches - self.model.spec.action_branches,
            reserved_branches=int(self.config.max_branches > 1), free_frames=self._frames.free(),
            steps_done=self._steps_done)
