"""
The scheduler: a pure function of state, time and expected costs. It knows no model and no clock.

A cycle ends with an action chunk that has a *deadline*. The latest moment at which its work can begin is

    start_by = deadline - slow(prefill + denoise) - margin

Until then, text is started and decoded; at that moment the action goes first. A question therefore never delays an
action, and an action is made from the newest frame there is. If that is prefilled already, the action itself can begin
later, but text leaves it the time for a newer one that may still come.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

from oxygen_ros.engine.cost_model import CostModel, Stage
from oxygen_ros.engine.requests import FinishReason
from oxygen_ros.errors import ConfigError

URGENT = 0  # priority of requests that somebody waits for
LEAST_PIECE = 8  # tokens of a prompt that are worth a call of their own


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
    :param tokens_per_cycle: decode steps per action cycle in continuous_batching, whether they fit or not; 0 is
        adaptive: as many as fit.
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
    """
    A request that has not started. `order` sorts by priority, then arrival; `own_prefix` says that it can share none.
    One that is `blocked` only waits for its time limit, until it is not.
    """

    request_id: int
    order: tuple[int, float]
    prompt_tokens: int
    expires: float | None = None
    own_prefix: bool = False
    blocked: bool = False


@dataclass(frozen=True)
class Running:
    """
    A request that decodes; `frame` counts prefills: of two frames the one with the lower count is older.

    :param prompt_left: tokens of its prompt that are not in its branch yet; until then it does not decode.
    """

    request_id: int
    frame: int
    expires: float | None = None
    prompt_left: int = 0


@dataclass(frozen=True)
class SchedulerState:
    """
    What the scheduler sees.

    :param deadlines: of the actions that are due next, ascending.
    :param expected: the deadline that will probably be set next, None if that is unknown. :param period: seconds
        between two deadlines, None if that is unknown.
    :param acting: actions are wanted, even if none is due just now.
    :param has_observation: there is one to prefill.
    :param can_act: it is recent enough to act on.
    :param action_prefilled: the newest observation, with the present instruction, is prefilled already.
    :param text_frame_ready: a prefilled frame recent enough for a new text exists.
    :param reserved_branches: free ones that are left for urgent requests.
    :param free_frames: slots that a prefill can take; that of a newest frame without texts is one of them.
    :param steps_done: decode steps since the last action.
    """

    deadlines: tuple[float, ...]
    acting: bool
    has_observation: bool
    can_act: bool
    action_prefilled: bool
    text_frame_ready: bool
    waiting: tuple[Waiting, ...]
    running: tuple[Running, ...]
    free_branches: int
    free_frames: int
    steps_done: int = 0
    expected: float | None = None
    period: float | None = None
    reserved_branches: int = 0


@dataclass(frozen=True)
class CyclePlan:
    """
    What to do next, in this order.

    :param end: requests to end now, with the reason.
    :param act: prefill if needed, denoise and publish; nothing else is in the plan then.
    :param skip: deadlines to give up before acting.
    :param prefill: prefill the newest observation for the texts in `start`.
    :param start: requests to start. :param own_prefix: each on a prefix of its own, which it prefills.
    :param piece: (request, tokens): take only so many of the rest of its prompt. It is one that starts, or that runs.
    :param decode_steps: most decode steps; None is no limit in steps.
    :param decode_until: no step may be expected to end after this time. :param act_by: the action has to begin then.
    :param wait_until: with nothing to do, sleep until then (or until something arrives).
    """

    end: tuple[tuple[int, FinishReason], ...] = ()
    act: bool = False
    skip: int = 0
    prefill: bool = False
    start: tuple[int, ...] = ()
    own_prefix: bool = False
    piece: tuple[int, int] | None = None
    decode_steps: int | None = 0
    decode_until: float = math.inf
    act_by: float = math.inf
    wait_until: float = math.inf


def plan_cycle(state: SchedulerState, now: float, costs: CostModel, config: SchedulerConfig) -> CyclePlan:
    """Return what the engine shall do next."""
    expired = tuple((r.request_id, FinishReason.TIMED_OUT) for r in (*state.waiting, *state.running)
                    if r.expires is not None and r.expires <= now)
    if expired:
        return CyclePlan(end=expired)

    if state.running and config.mode is not Mode.CONTINUOUS_BATCHING:
        return CyclePlan(decode_steps=None)  # to the end of the text, whatever is due: that is what these modes are

    start_by = math.inf
    if state.deadlines:
        lead = action_cost(costs, state.action_prefilled) + config.margin
        start_by = state.deadlines[0] - lead
        if now >= start_by:
            return CyclePlan(act=True, skip=_superseded(state.deadlines, now, lead), end=_make_room(state))

    text_by = _end_of_text(state, now, costs, config)
    if state.waiting and state.has_observation and state.free_branches:
        plan = _start_texts(state, now, text_by, costs, config)
        if plan is not None:
            return plan
    unprompted = next((r for r in state.running if r.prompt_left), None)
    if unprompted is not None:
        piece = _piece(unprompted.prompt_left, math.inf if config.tokens_per_cycle else text_by - now, costs)
        if piece:
            return CyclePlan(piece=(unprompted.request_id, piece))
    decoding = sum(not r.prompt_left for r in state.running)
    if decoding:
        fixed = config.tokens_per_cycle if state.acting else 0
        steps = max(0, fixed - state.steps_done) if fixed else None
        until = math.inf if fixed else text_by
        if steps != 0 and now + costs.predict(Stage.DECODE, decoding) <= until:
            return CyclePlan(decode_steps=steps, decode_until=until, act_by=text_by)
    expiries = [r.expires for r in (*state.waiting, *state.running) if r.expires is not None]
    return CyclePlan(wait_until=min([start_by if state.deadlines else text_by, *expiries]))


def action_cost(costs: CostModel, prefilled: bool) -> float:
    """Return the seconds that a slow action takes, with its prefill if it needs one."""
    if prefilled:
        return costs.slow(Stage.DENOISE)
    return costs.slow(Stage.ACTION) or costs.slow(Stage.PREFILL) + costs.slow(Stage.DENOISE)


def _end_of_text(state: SchedulerState, now: float, costs: CostModel, config: SchedulerConfig) -> float:
    """Return the time that no text work may go beyond, in the adaptive mode."""
    lead = action_cost(costs, prefilled=False) + config.margin
    if state.deadlines:
        return state.deadlines[0] - lead
    # In the gap after an action: the next deadline is not set yet, and still there will be one.
    if state.expected is not None and now < state.expected - lead:
        return state.expected - lead
    return math.inf


def _start_texts(state: SchedulerState, now: float, text_by: float, costs: CostModel, config: SchedulerConfig,
                 ) -> CyclePlan | None:
    """Start what fits into free slots and, in the adaptive mode, into the time before the next action."""
    alone = config.mode is not Mode.CONTINUOUS_BATCHING
    prefill = not state.text_frame_ready
    timed = not alone and not config.tokens_per_cycle
    chosen: list[int] = []
    longest = 1
    piece = None
    for request in sorted((r for r in state.waiting if not r.blocked), key=lambda r: r.order):
        usable = state.free_branches - (0 if request.order[0] == URGENT else state.reserved_branches)
        if len(chosen) >= (min(1, usable) if alone else usable):
            break
        own = request.own_prefix or config.mode is Mode.ISOLATED
        if own and (chosen or not state.free_frames):
            continue  # it starts alone
        # Prompts of a batch are padded to the longest.
        padded = max(longest, request.prompt_tokens)
        cost = costs.predict(Stage.PREFILL) if prefill or own else 0.0
        if timed and now + cost + costs.predict(Stage.EXTEND, padded * (len(chosen) + 1)) > text_by:
            if not own and _never_fits(request, cost, state, costs, config):
                tokens = 0 if chosen else _piece(request.prompt_tokens, text_by - now - cost, costs)
                if tokens:
                    chosen, piece = [request.request_id], (request.request_id, tokens)
                    break
            continue  # a shorter one may fit; this one comes first again after the action
        if own:
            return CyclePlan(start=(request.request_id,), own_prefix=True)
        chosen.append(request.request_id)
        longest = padded
    if not chosen:
        return None
    # A text must not push out others for a fresher frame: it waits until they end, or an action brings a new frame.
    if prefill and not state.free_frames:
        return None
    return CyclePlan(prefill=prefill, start=tuple(chosen), piece=piece)


def _never_fits(request: Waiting, before: float, state: SchedulerState, costs: CostModel, config: SchedulerConfig,
                ) -> bool:
    """Return whether a prompt is longer than the time between two actions. :param before: seconds needed before it."""
    if state.period is None:
        return False
    room = state.period - action_cost(costs, prefilled=False) - config.margin
    return before + costs.predict(Stage.EXTEND, request.prompt_tokens) > room


def _piece(tokens: int, seconds: float, costs: CostModel) -> int:
    """Return how many of a prompt's tokens fit into some seconds; 0 if it is not worth a call."""
    while costs.predict(Stage.EXTEND, tokens) > seconds:
        if tokens <= LEAST_PIECE:
            return 0
        tokens = max(LEAST_PIECE, tokens // 2)
    return tokens


def _superseded(deadlines: tuple[float, ...], now: float, lead: float) -> int:
    """
    Return how many deadlines to give up: those that are past when the next one is due as well.

    Under overload one chunk for the newest of them serves better than one for each. A deadline that is past alone is
    served late, for that costs nothing.
    """
    skip = 0
    while skip + 1 < len(deadlines) and deadlines[skip] < now and now >= deadlines[skip + 1] - lead:
        skip += 1
    return skip


def _make_room(state: SchedulerState) -> tuple[tuple[int, FinishReason], ...]:
    """End the texts of the oldest frame when the action's prefill would find no frame slot."""
    if state.action_prefilled or not state.can_act or state.free_frames or not state.running:
        return ()
    oldest = min(r.frame for r in state.running)
    return tuple((r.request_id, FinishReason.FRAME_BUDGET) for r in state.running if r.frame == oldest)
