"""
The scheduler: a pure function of state, time and expected costs. It knows no model and no clock.

A cycle ends with an action chunk that has a *deadline*. The latest moment at which its work can begin is

    start_by = deadline - predicted(prefill + denoise) - margin

Until then, text is started and decoded; at that moment the action goes first. A question therefore never delays an
action, and an action is made from the newest frame there is.
"""

from __future__ import annotations

from dataclasses import dataclass
import enum
import math

from oxygen_ros.engine.cost_model import CostModel, Stage
from oxygen_ros.engine.requests import FinishReason
from oxygen_ros.errors import ConfigError


class Mode(enum.Enum):
    """How the work of a frame is shared between tasks; see `plan_cycle`."""

    ISOLATED = 'isolated'
    SHARED_KV = 'shared_kv'
    CONTINUOUS_BATCHING = 'continuous_batching'


@dataclass(frozen=True)
class SchedulerConfig:
    """
    :param mode: isolated: every task prefills the frame for itself and runs alone to its end. shared_kv: tasks share
        the frame's prefill, texts still run alone to their end. continuous_batching: texts of all frames decode in one
        batch between actions.
    :param tokens_per_cycle: decode steps per action cycle in continuous_batching; 0 is adaptive: as many as fit.
    :param margin: seconds kept free before an action must begin.
    :param text_frame_age: seconds by which the prefilled frame may be older than the newest observation when a text
        starts on it; beyond, the newest is prefilled first.
    """

    mode: Mode = Mode.CONTINUOUS_BATCHING
    tokens_per_cycle: int = 0
    margin: float = 0.005
    text_frame_age: float = 0.5

    def __post_init__(self) -> None:
        if self.tokens_per_cycle < 0 or self.margin < 0 or self.text_frame_age < 0:
            raise ConfigError(f'scheduler: tokens_per_cycle {self.tokens_per_cycle}, margin {self.margin} and '
                              f'text_frame_age {self.text_frame_age} must not be negative')


@dataclass(frozen=True)
class Waiting:
    """A request that has not started. `order` sorts by priority, then arrival."""

    request_id: int
    order: tuple[int, float]
    prompt_tokens: int
    expires: float | None = None


@dataclass(frozen=True)
class Running:
    """A request that decodes; `frame_number` is the number of its frame."""

    request_id: int
    frame_number: int
    expires: float | None = None


@dataclass(frozen=True)
class SchedulerState:
    """
    What the scheduler sees.

    :param deadline: of the next action, None when no action is wanted.
    :param has_observation: there is one to prefill.
    :param action_prefilled: the newest observation, with the present instruction, is prefilled already.
    :param text_frame_ready: a prefilled frame recent enough for a new text exists.
    :param steps_done: decode steps since the last action.
    """

    deadline: float | None
    has_observation: bool
    action_prefilled: bool
    text_frame_ready: bool
    waiting: tuple[Waiting, ...]
    running: tuple[Running, ...]
    free_branches: int
    free_frames: int
    steps_done: int = 0


@dataclass(frozen=True)
class CyclePlan:
    """
    What to do next, in this order.

    :param end: requests to end now, with the reason.
    :param act: prefill if needed, denoise and publish; nothing else is in the plan then.
    :param prefill: prefill the newest observation for the texts in `start`.
    :param start: requests to start.
    :param decode_steps: most decode steps; None is no limit in steps.
    :param decode_until: no step may be expected to end after this time.
    :param uninterrupted: decode to the end of the text, whatever arrives.
    :param wait_until: with nothing to do, sleep until then (or until something arrives).
    """

    end: tuple[tuple[int, FinishReason], ...] = ()
    act: bool = False
    prefill: bool = False
    start: tuple[int, ...] = ()
    decode_steps: int | None = 0
    decode_until: float = math.inf
    uninterrupted: bool = False
    wait_until: float = math.inf


def plan_cycle(state: SchedulerState, now: float, costs: CostModel, config: SchedulerConfig) -> CyclePlan:
    """Return what the engine shall do next."""
    expired = tuple((r.request_id, FinishReason.TIMED_OUT) for r in (*state.waiting, *state.running)
                    if r.expires is not None and r.expires <= now)
    if expired:
        return CyclePlan(end=expired)

    start_by = math.inf
    if state.deadline is not None:
        start_by = state.deadline - action_cost(state, costs) - config.margin
        if now >= start_by:
            return CyclePlan(act=True, end=_make_room(state, not state.action_prefilled))

    alone = config.mode is not Mode.CONTINUOUS_BATCHING
    if state.waiting and state.has_observation and state.free_branches and not (alone and state.running):
        plan = _start_texts(state, now, start_by, costs, config)
        if plan is not None:
            return plan
    if state.running:
        if alone:
            return CyclePlan(decode_steps=None, uninterrupted=True)
        fixed = config.tokens_per_cycle if state.deadline is not None else 0
        steps = max(0, fixed - state.steps_done) if fixed else None
        until = math.inf if fixed else start_by
        if steps != 0 and now + costs.predict(Stage.DECODE, len(state.running)) <= until:
            return CyclePlan(decode_steps=steps, decode_until=until)
    expiries = [r.expires for r in (*state.waiting, *state.running) if r.expires is not None]
    return CyclePlan(wait_until=min([start_by, *expiries]))


def action_cost(state: SchedulerState, costs: CostModel) -> float:
    """Return the seconds that the next action is expected to take, with its prefill if there is one."""
    prefill = 0.0 if state.action_prefilled else costs.predict(Stage.PREFILL)
    return prefill + costs.predict(Stage.DENOISE)


def _start_texts(state: SchedulerState, now: float, start_by: float, costs: CostModel, config: SchedulerConfig,
                 ) -> CyclePlan | None:
    """Start what fits into free slots and, in the adaptive mode, into the time before the next action."""
    alone = config.mode is not Mode.CONTINUOUS_BATCHING
    prefill = config.mode is Mode.ISOLATED or not state.text_frame_ready
    timed = not alone and not config.tokens_per_cycle
    cost = costs.predict(Stage.PREFILL) if prefill else 0.0
    chosen: list[int] = []
    tokens = 0
    for request in sorted(state.waiting, key=lambda r: r.order)[:1 if alone else state.free_branches]:
        tokens += request.prompt_tokens
        if timed and now + cost + costs.predict(Stage.EXTEND, max(tokens, 1)) > start_by:
            break
        chosen.append(request.request_id)
    if not chosen:
        return None
    # A text must not push out others for a fresher frame: without a free frame slot it takes the frame there is.
    if prefill and not state.free_frames:
        return None
    return CyclePlan(prefill=prefill, start=tuple(chosen))


def _make_room(state: SchedulerState, prefill: bool) -> tuple[tuple[int, FinishReason], ...]:
    """End the texts of the oldest frame when the action's prefill would find no frame slot."""
    if not prefill or state.free_frames or not state.running:
        return ()
    oldest = min(r.frame_number for r in state.running)
    return tuple((r.request_id, FinishReason.FRAME_BUDGET) for r in state.running if r.frame_number == oldest)
