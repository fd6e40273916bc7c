"""The scheduler alone: what it plans in a given state at a given time, no model and no clock."""

import copy
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oxygen_ros.engine.cost_model import CostModel, Stage
from oxygen_ros.engine.requests import FinishReason
from oxygen_ros.engine.scheduler import CyclePlan, Mode, Running, SchedulerConfig, SchedulerState, Waiting, plan_cycle
from oxygen_ros.errors import ConfigError

ADAPTIVE = SchedulerConfig(margin=0.005)
EMPTY = SchedulerState(deadlines=(), acting=False, has_observation=True, can_act=True, action_prefilled=False,
                       text_frame_ready=True, waiting=(), running=(), free_branches=4, free_frames=3)


def exact_costs(prefill=0.05, denoise=0.03, extend=0.01, decode=0.01):
    costs = CostModel()
    for stage, seconds in ((Stage.PREFILL, prefill), (Stage.DENOISE, denoise), (Stage.EXTEND, extend),
                           (Stage.DECODE, decode)):
        costs.observe(stage, 1, seconds)
        costs.observe(stage, 1000, seconds)
    for _ in range(60):
        costs.relax(Stage)
    return costs


COSTS = exact_costs()


def waiting(request_id, priority=1, arrived=0.0, tokens=1, expires=None):
    return Waiting(request_id, (priority, arrived), tokens, expires)


# -- actions -----------------------------------------------------------------------------------------------------------

def test_action_begins_at_the_latest_moment_that_meets_its_deadline():
    state = replace(EMPTY, deadlines=(1.0,))
    start_by = 1.0 - 0.08 - 0.005
    assert plan_cycle(state, start_by - 1e-6, COSTS, ADAPTIVE).wait_until == pytest.approx(start_by)
    assert plan_cycle(state, start_by + 1e-9, COSTS, ADAPTIVE) == CyclePlan(act=True)


def test_prefilled_frame_leaves_more_time():
    state = replace(EMPTY, deadlines=(1.0,), action_prefilled=True)
    assert plan_cycle(state, 0.95, COSTS, ADAPTIVE).wait_until == pytest.approx(1.0 - 0.03 - 0.005)


def test_action_goes_before_any_text():
    state = replace(EMPTY, deadlines=(1.0,), acting=True, waiting=(waiting(1, priority=0),), running=(Running(2, 1),))
    plan = plan_cycle(state, 0.95, COSTS, ADAPTIVE)
    assert plan.act and not plan.start and plan.decode_steps == 0


def test_past_deadline_alone_is_served_late_and_only_then():
    assert plan_cycle(replace(EMPTY, deadlines=(1.0,)), 5.0, COSTS, ADAPTIVE) == CyclePlan(act=True)
    # The next one has time enough: the late chunk is worth making.
    assert plan_cycle(replace(EMPTY, deadlines=(1.0, 1.5)), 1.1, COSTS, ADAPTIVE) == CyclePlan(act=True)


def test_under_overload_one_chunk_serves_all_deadlines_that_are_due():
    state = replace(EMPTY, deadlines=(1.0, 1.1, 1.2, 2.0))
    assert plan_cycle(state, 1.19, COSTS, ADAPTIVE) == CyclePlan(act=True, skip=2)
    # Not past yet: nothing is given up that may still be met.
    assert plan_cycle(state, 0.95, COSTS, ADAPTIVE) == CyclePlan(act=True)


# -- text --------------------------------------------------------------------------------------------------------------

def test_text_starts_in_order_of_priority_then_arrival():
    state = replace(EMPTY, waiting=(waiting(1, 2, 0.0), waiting(2, 1, 0.5), waiting(3, 0, 0.9), waiting(4, 1, 0.1)),
                    free_branches=3)
    assert plan_cycle(state, 1.0, COSTS, ADAPTIVE).start == (3, 4, 2)


def test_last_branch_is_left_for_urgent_requests():
    state = replace(EMPTY, waiting=(waiting(1, 1), waiting(2, 1), waiting(3, 0)), free_branches=2, reserved_branches=1)
    assert plan_cycle(state, 1.0, COSTS, ADAPTIVE).start == (3,)  # one is left, for the next urgent one
    assert plan_cycle(replace(state, free_branches=3), 1.0, COSTS, ADAPTIVE).start == (3, 1)
    assert plan_cycle(replace(state, free_branches=1), 1.0, COSTS, ADAPTIVE).start == (3,)
    background = replace(state, waiting=state.waiting[:2])
    assert plan_cycle(background, 1.0, COSTS, ADAPTIVE).start == (1,)
    assert plan_cycle(replace(background, free_branches=1), 1.0, COSTS, ADAPTIVE).start == ()


def test_text_never_starts_when_its_prompt_would_delay_the_action():
    state = replace(EMPTY, deadlines=(1.0,), waiting=(waiting(1),))
    start_by = 1.0 - 0.08 - 0.005
    assert plan_cycle(state, start_by - 0.0101, COSTS, ADAPTIVE).start == (1,)
    assert plan_cycle(state, start_by - 0.0099, COSTS, ADAPTIVE) == CyclePlan(wait_until=start_by)


def test_text_without_a_recent_frame_needs_time_for_a_prefill_too():
    state = replace(EMPTY, deadlines=(1.0,), waiting=(waiting(1),), text_frame_ready=False)
    start_by = 1.0 - 0.08 - 0.005
    plan = plan_cycle(state, start_by - 0.0601, COSTS, ADAPTIVE)
    assert (plan.start, plan.prefill) == ((1,), True)
    assert plan_cycle(state, start_by - 0.0599, COSTS, ADAPTIVE).start == ()


def test_as_many_prompts_start_as_fit_into_the_time():
    costs = CostModel()
    costs.observe(Stage.EXTEND, 8, 0.008)
    costs.observe(Stage.EXTEND, 800, 0.8)
    for _ in range(60):
        costs.relax(Stage)
    state = replace(EMPTY, deadlines=(1.0,), waiting=tuple(waiting(i, arrived=i, tokens=40) for i in range(1, 5)))
    assert plan_cycle(state, 1.0 - 0.005 - 0.13, costs, ADAPTIVE).start == (1, 2, 3)
    # In a batch they are padded to the longest.
    short = replace(state, waiting=(waiting(1, arrived=1, tokens=40), *(waiting(i, 2) for i in range(2, 5))))
    assert plan_cycle(short, 1.0 - 0.005 - 0.13, costs, ADAPTIVE).start == (1, 2, 3)


def test_text_too_long_for_this_cycle_blocks_no_shorter_one():
    costs = CostModel()
    costs.observe(Stage.EXTEND, 8, 0.008)
    for _ in range(60):
        costs.relax(Stage)
    state = replace(EMPTY, deadlines=(1.0,), waiting=(waiting(1, priority=0, tokens=200), waiting(2, tokens=8)))
    assert plan_cycle(state, 0.95, costs, ADAPTIVE).start == (2,)
    assert plan_cycle(state, 0.6, costs, ADAPTIVE).start == (1,)  # beside it the short one would take 200 tokens too


def test_text_waits_without_slot_or_observation():
    for missing in ({'free_branches': 0}, {'has_observation': False}):
        state = replace(EMPTY, waiting=(waiting(1, expires=9.0),), **missing)
        assert plan_cycle(state, 1.0, COSTS, ADAPTIVE) == CyclePlan(wait_until=9.0)


def test_text_never_pushes_out_others_for_a_fresher_frame():
    state = replace(EMPTY, waiting=(waiting(1),), running=(Running(2, 1),), text_frame_ready=False, free_frames=0)
    plan = plan_cycle(state, 1.0, COSTS, ADAPTIVE)
    assert (plan.start, plan.end, plan.decode_steps) == ((), (), None)


def test_decode_step_that_would_end_too_late_is_not_begun():
    state = replace(EMPTY, deadlines=(1.0,), running=(Running(1, 1),))
    start_by = 1.0 - 0.08 - 0.005
    plan = plan_cycle(state, start_by - 0.0101, COSTS, ADAPTIVE)
    assert (plan.decode_steps, plan.decode_until) == (None, pytest.approx(start_by))
    assert plan_cycle(state, start_by - 0.0099, COSTS, ADAPTIVE) == CyclePlan(wait_until=start_by)


def test_without_actions_text_decodes_without_limit():
    plan = plan_cycle(replace(EMPTY, running=(Running(1, 1),)), 1.0, COSTS, ADAPTIVE)
    assert (plan.decode_steps, plan.decode_until) == (None, math.inf)


def test_text_leaves_time_for_a_newer_frame_though_the_newest_is_prefilled():
    state = replace(EMPTY, deadlines=(1.0,), running=(Running(1, 1),), action_prefilled=True)
    text_by = 1.0 - 0.08 - 0.005
    assert plan_cycle(state, text_by - 0.0101, COSTS, ADAPTIVE).decode_until == pytest.approx(text_by)
    waits = plan_cycle(state, text_by - 0.0099, COSTS, ADAPTIVE)
    assert not waits.act and waits.wait_until == pytest.approx(1.0 - 0.03 - 0.005)


def test_text_keeps_clear_of_the_deadline_that_will_probably_be_set_next():
    state = replace(EMPTY, acting=True, expected=1.0, running=(Running(1, 1),), waiting=(waiting(2),))
    text_by = 1.0 - 0.08 - 0.005
    assert plan_cycle(state, text_by - 0.0101, COSTS, ADAPTIVE).start == (2,)
    assert plan_cycle(state, text_by - 0.0099, COSTS, ADAPTIVE) == CyclePlan(wait_until=text_by)
    decodes = replace(state, waiting=())
    assert plan_cycle(decodes, text_by - 0.0101, COSTS, ADAPTIVE).decode_until == pytest.approx(text_by)
    # It was not set: text goes on.
    assert plan_cycle(decodes, text_by, COSTS, ADAPTIVE).decode_steps is None


# -- fixed number of tokens per cycle ----------------------------------------------------------------------------------

FIXED = SchedulerConfig(tokens_per_cycle=5)


def test_fixed_tokens_are_decoded_whether_they_fit_or_not():
    state = replace(EMPTY, deadlines=(1.0,), acting=True, running=(Running(1, 1),), steps_done=2)
    plan = plan_cycle(state, 0.914, COSTS, FIXED)
    assert (plan.decode_steps, plan.decode_until) == (3, math.inf)


@pytest.mark.parametrize('deadlines', [(1.0,), ()])
def test_fixed_tokens_are_all_there_is_until_the_next_action(deadlines):
    """Also while the next deadline has not been set yet."""
    state = replace(EMPTY, deadlines=deadlines, acting=True, running=(Running(1, 1, expires=7.0),), steps_done=5)
    plan = plan_cycle(state, 0.5, COSTS, FIXED)
    assert plan.decode_steps == 0 and plan.wait_until == pytest.approx(0.915 if deadlines else 7.0)


def test_fixed_tokens_do_not_bind_when_no_action_is_wanted():
    state = replace(EMPTY, running=(Running(1, 1),), steps_done=5)
    assert plan_cycle(state, 0.5, COSTS, FIXED).decode_steps is None


# -- the modes of comparison -------------------------------------------------------------------------------------------

@pytest.mark.parametrize('mode', [Mode.ISOLATED, Mode.SHARED_KV])
def test_text_runs_alone_to_its_end_in_the_modes_without_batching(mode):
    config = SchedulerConfig(mode)
    two = replace(EMPTY, waiting=(waiting(1), waiting(2)))
    plan = plan_cycle(two, 1.0, COSTS, config)
    assert plan.start == (1,) and plan.own_prefix is (mode is Mode.ISOLATED)
    busy = replace(two, running=(Running(1, 1),), deadlines=(1.0,), acting=True)
    assert plan_cycle(busy, 1.5, COSTS, config) == CyclePlan(decode_steps=None)
    assert plan_cycle(replace(busy, running=()), 1.5, COSTS, config).act


# -- ends --------------------------------------------------------------------------------------------------------------

def test_what_has_expired_ends_first_whether_it_waits_or_runs():
    state = replace(EMPTY, deadlines=(1.0,), waiting=(waiting(1, expires=2.0), waiting(2, expires=3.0)),
                    running=(Running(3, 1, expires=1.9), Running(4, 1)))
    assert plan_cycle(state, 2.0, COSTS, ADAPTIVE) == CyclePlan(end=((1, FinishReason.TIMED_OUT),
                                                                     (3, FinishReason.TIMED_OUT)))


def test_waiting_ends_with_the_next_expiry():
    state = replace(EMPTY, waiting=(waiting(1, expires=3.0),), free_branches=0)
    assert plan_cycle(state, 1.0, COSTS, ADAPTIVE).wait_until == 3.0


SCARCE = replace(EMPTY, deadlines=(1.0,), free_frames=0, running=(Running(1, 7), Running(2, 5), Running(3, 5)))


def test_scarce_frames_end_the_texts_of_the_oldest_frame_and_no_others():
    plan = plan_cycle(SCARCE, 1.0, COSTS, ADAPTIVE)
    assert plan.act and plan.end == ((2, FinishReason.FRAME_BUDGET), (3, FinishReason.FRAME_BUDGET))


@pytest.mark.parametrize('enough', [{'free_frames': 1}, {'action_prefilled': True}, {'can_act': False}])
def test_no_text_ends_for_a_prefill_that_has_room_or_never_comes(enough):
    assert plan_cycle(replace(SCARCE, **enough), 1.0, COSTS, ADAPTIVE) == CyclePlan(act=True)


def test_settings_out_of_range_are_refused():
    for wrong in ({'tokens_per_cycle': -1}, {'margin': -0.1}, {'text_frame_age': -1.0}):
        with pytest.raises(ConfigError):
            SchedulerConfig(**wrong)


# -- prompts that never fit --------------------------------------------------------------------------------------------

def costs_per_token(seconds=0.001):
    costs = exact_costs()
    costs.observe(Stage.EXTEND, 8, 8 * seconds)
    for tokens in range(16, 1008, 8):
        costs.observe(Stage.EXTEND, tokens, tokens * seconds)
    for _ in range(60):
        costs.relax(Stage)
    return costs


LONG = replace(EMPTY, deadlines=(1.0,), acting=True, expected=1.2, period=0.2, waiting=(waiting(1, tokens=300),))
ACTION = 0.085  # seconds before the deadline in which an action begins


def test_prompt_longer_than_a_cycle_begins_with_as_much_as_fits():
    plan = plan_cycle(LONG, 1.0 - ACTION - 0.081, costs_per_token(), ADAPTIVE)
    assert (plan.start, plan.piece) == ((1,), (1, 75))


def test_prompt_that_fits_into_the_next_cycle_waits_for_it():
    state = replace(LONG, waiting=(waiting(1, tokens=100),))
    assert not plan_cycle(state, 1.0 - ACTION - 0.08, costs_per_token(), ADAPTIVE).start
    assert plan_cycle(state, 1.0 - ACTION - 0.11, costs_per_token(), ADAPTIVE) == CyclePlan(start=(1,))


def test_piece_leaves_room_for_the_prefill_that_it_needs():
    plan = plan_cycle(replace(LONG, text_frame_ready=False), 1.0 - ACTION - 0.081, costs_per_token(), ADAPTIVE)
    assert (plan.start, plan.prefill, plan.piece) == ((1,), True, (1, 18))


def test_rest_of_a_prompt_goes_before_decoding_and_only_as_far_as_it_fits():
    state = replace(LONG, waiting=(), running=(Running(1, 1, prompt_left=225), Running(2, 1)))
    costs = costs_per_token()
    assert plan_cycle(state, 1.0 - ACTION - 0.081, costs, ADAPTIVE).piece == (1, 56)
    assert plan_cycle(replace(state, deadlines=(), expected=None), 0.0, costs, ADAPTIVE).piece == (1, 225)
    # Too little time for a piece, and enough for a step of the text that decodes.
    costs.observe(Stage.DECODE, 1, 0.001)
    for _ in range(60):
        costs.observe(Stage.DECODE, 1, 0.001)
    plan = plan_cycle(state, 1.0 - ACTION - 0.0075, costs, ADAPTIVE)
    assert plan.piece is None and plan.decode_steps is None


def test_text_without_its_prompt_does_not_decode():
    state = replace(EMPTY, deadlines=(1.0,), running=(Running(1, 1, prompt_left=500),))
    plan = plan_cycle(state, 1.0 - ACTION - 0.006, costs_per_token(), ADAPTIVE)
    assert plan == CyclePlan(wait_until=pytest.approx(1.0 - ACTION))


def test_fixed_budget_says_too_when_the_action_has_to_begin():
    state = replace(EMPTY, deadlines=(1.0,), acting=True, running=(Running(1, 1),))
    plan = plan_cycle(state, 0.5, COSTS, SchedulerConfig(tokens_per_cycle=4, margin=0.005))
    assert (plan.decode_steps, plan.decode_until) == (4, math.inf)
    assert plan.act_by == pytest.approx(1.0 - ACTION)


# -- whatever the state ------------------------------------------------------------------------------------------------

times = st.floats(0.0, 2.0)
expiries = st.none() | times


@st.composite
def states(draw):
    ids = draw(st.lists(st.integers(1, 30), unique=True, max_size=8))
    cut = draw(st.integers(0, len(ids)))
    return SchedulerState(
        deadlines=tuple(sorted(draw(st.lists(times, max_size=4)))), acting=draw(st.booleans()),
        has_observation=draw(st.booleans()), can_act=draw(st.booleans()), action_prefilled=draw(st.booleans()),
        text_frame_ready=draw(st.booleans()),
        waiting=tuple(Waiting(i, (draw(st.integers(0, 2)), draw(times)), draw(st.integers(0, 60)), draw(expiries),
                              draw(st.booleans())) for i in ids[:cut]),
        running=tuple(Running(i, draw(st.integers(1, 4)), draw(expiries), draw(st.sampled_from([0, 0, 0, 5, 200])))
                      for i in ids[cut:]),
        free_branches=draw(st.integers(0, 4)), free_frames=draw(st.integers(0, 3)), steps_done=draw(st.integers(0, 9)),
        expected=draw(st.none() | times), period=draw(st.none() | st.floats(0.01, 0.5)),
        reserved_branches=draw(st.integers(0, 1)))


configs = st.builds(SchedulerConfig, st.sampled_from(Mode), st.sampled_from([0, 0, 4]), st.sampled_from([0.0, 0.01]))


@settings(max_examples=300, deadline=None)
@given(states(), times, configs, st.floats(0.0, 0.3), st.floats(0.0, 0.3), st.floats(0.001, 0.1))
def test_whatever_the_state_the_plan_keeps_its_promises(state, now, config, prefill, denoise, decode):
    costs = exact_costs(prefill, denoise, decode, decode)
    before = copy.deepcopy(state)
    plan = plan_cycle(state, now, costs, config)
    assert plan == plan_cycle(state, now, costs, config) and state == before
    lead = costs.predict(Stage.DENOISE) + config.margin + (not state.action_prefilled) * costs.predict(Stage.PREFILL)
    start_by = state.deadlines[0] - lead if state.deadlines else math.inf
    full = costs.predict(Stage.DENOISE) + config.margin + costs.predict(Stage.PREFILL)
    text_by = min((d - full for d in state.deadlines or (state.expected,) if d is not None), default=math.inf)
    if not state.deadlines and text_by <= now:
        text_by = math.inf
    alone = config.mode is not Mode.CONTINUOUS_BATCHING
    decodes = plan.decode_steps is None or plan.decode_steps > 0
    goes_on = plan.piece is not None and not plan.start
    assert plan.act + bool(plan.start) + decodes + goes_on <= 1
    expired = {r.request_id for r in (*state.waiting, *state.running) if r.expires is not None and r.expires <= now}
    if expired:
        assert {i for i, reason in plan.end if reason is FinishReason.TIMED_OUT} == expired
        return
    # Actions come first at start_by; only the modes that run texts alone keep one waiting.
    assert plan.act is (now >= start_by and not (alone and state.running))
    assert 0 <= plan.skip < max(1, len(state.deadlines)) and all(d < now for d in state.deadlines[:plan.skip])
    if plan.end:
        assert plan.act and not state.free_frames and not state.action_prefilled and state.can_act
        assert {reason for _, reason in plan.end} == {FinishReason.FRAME_BUDGET}
    if plan.start:
        order = {w.request_id: w.order for w in state.waiting}
        assert len(plan.start) <= (1 if alone else state.free_branches) and state.has_observation
        timed = not alone and not config.tokens_per_cycle
        if not timed and state.free_frames:
            assert all(order[i] <= order[j] for i in plan.start for j in order if j not in plan.start)
        usual = [i for i in plan.start if order[i][0] > 0]
        assert not usual or len(plan.start) <= state.free_branches - state.reserved_branches
        prefills = plan.prefill or plan.own_prefix
        assert not (prefills and not state.free_frames)
        assert prefills or state.text_frame_ready
        # Whoever needs a prefix of its own starts alone, and nobody else does.
        own = {w.request_id for w in state.waiting if w.own_prefix or config.mode is Mode.ISOLATED}
        assert plan.own_prefix is bool(own & set(plan.start)) and (not plan.own_prefix or len(plan.start) == 1)
        if timed:
            tokens = {w.request_id: max(1, w.prompt_tokens) for w in state.waiting}

            def end(chosen):
                size = plan.piece[1] if plan.piece else max(tokens[i] for i in chosen) * len(chosen)
                return now + prefills * costs.predict(Stage.PREFILL) + costs.predict(Stage.EXTEND, size)

            assert end(plan.start) <= text_by
            if plan.piece:
                assert plan.start == (plan.piece[0],) and 0 < plan.piece[1] < tokens[plan.piece[0]]
                return
            # Whoever was passed over would not have fitted beside those of higher priority.
            for j in order.keys() - set(plan.start) - own if not plan.own_prefix else ():
                before = [i for i in plan.start if order[i] < order[j]]
                reserved = state.reserved_branches if order[j][0] > 0 else 0
                assert (len(before) == len(plan.start) or len(before) >= state.free_branches - reserved
                        or end([*before, j]) > text_by)
    if decodes and not alone:
        if config.tokens_per_cycle and state.acting:
            assert plan.decode_steps + state.steps_done <= config.tokens_per_cycle
        else:
            assert plan.decode_until == pytest.approx(text_by)
            assert now + costs.predict(Stage.DECODE, sum(not r.prompt_left for r in state.running)) <= plan.decode_until
    if goes_on:
        assert not alone and plan.piece[1] <= {r.request_id: r.prompt_left for r in state.running}[plan.piece[0]]
        assert config.tokens_per_cycle or now + costs.predict(Stage.EXTEND, plan.piece[1]) <= text_by
    if not (plan.act or plan.start or decodes or goes_on):
        assert plan.wait_until > now
