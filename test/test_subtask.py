"""Subtask mode: the model says what to do next on a prefix of its own, and that becomes the instruction."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
from engine_fakes import FakeClock, FakeModel, Rig

from oxygen_ros.engine.cost_model import CostModel, Stage
from oxygen_ros.engine.requests import AdmissionError, FinishReason, Refusal, TextDelta, TextRequest
from oxygen_ros.engine.scheduler import Mode, SchedulerConfig, SchedulerState, Waiting, plan_cycle
from oxygen_ros.nodes.inference_outputs import InferenceOutputs
from oxygen_ros.tasks.subtask import SubtaskCollector

STATE = SchedulerState(
    deadlines=(1.0,), acting=True, has_observation=True, can_act=True, action_prefilled=True, text_frame_ready=True,
    waiting=(), running=(), free_branches=8, free_frames=2)


class SubtaskModel(FakeModel):
    """The fake model with a high level: it records the prefixes of subtasks apart."""

    def __init__(self, **seconds):
        super().__init__(FakeClock(), **seconds)
        self.spec = replace(self.spec, has_subtasks=True)
        self.tasks = []

    def prefill_subtask(self, inputs, task, cache, frame):
        self.tasks.append(task)
        self.prefill(inputs, task, cache, frame)

    def branch_prompt(self, task, text):
        return super().branch_prompt('speech' if task == 'subtask' else task, text)


def costs():
    model = CostModel()
    for stage, seconds in ((Stage.PREFILL, 0.1), (Stage.DENOISE, 0.1), (Stage.EXTEND, 0.02), (Stage.DECODE, 0.01)):
        for _ in range(50):
            model.observe(stage, 1, seconds)
    return model


def test_subtask_gets_a_prefix_of_its_own_and_other_texts_do_not():
    rig = Rig(model=SubtaskModel())
    rig.observe(1)
    first = rig.submit(max_tokens=3)
    rig.run()
    assert rig.model.count('prefill') == 1
    subtask = rig.submit('subtask', 'clear the table', max_tokens=3)
    second = rig.submit(max_tokens=3)
    rig.run()
    assert rig.model.tasks == ['clear the table']
    assert rig.model.count('prefill') == 2  # the second line still stands on the first frame
    assert set(rig.ends()) == {first, subtask, second}
    rig.engine.check_integrity()
    assert rig.engine.cache.free_branches == 8


def test_subtask_prefix_goes_with_its_text_and_the_newest_frame_stays():
    rig = Rig(model=SubtaskModel())
    rig.observe(1)
    rig.submit(max_tokens=3)
    rig.run()
    before = rig.engine.cache.free_frames
    rig.submit('subtask', 'clear the table', max_tokens=3)
    rig.run()
    assert rig.engine.cache.free_frames == before


def test_model_without_a_high_level_refuses_subtasks():
    rig = Rig()
    with pytest.raises(AdmissionError, match='subtask.rate') as refused:
        rig.engine.submit(TextRequest(1, 'subtask', 'clear the table'))
    assert refused.value.refusal is Refusal.NO_SUBTASKS


def test_prefix_of_a_subtask_is_counted_into_the_time_before_the_action():
    waiting = (Waiting(1, (1, 0.0), 1, own_prefix=True), Waiting(2, (2, 0.0), 1))
    config = SchedulerConfig(margin=0.0)
    early = plan_cycle(replace(STATE, waiting=waiting), 0.0, costs(), config)
    assert early.start == (1,) and early.own_prefix and not early.prefill
    # 0.7 s: enough for a prompt (0.02), not for a prefill besides (0.12) before the action begins at 0.8.
    late = plan_cycle(replace(STATE, waiting=waiting), 0.7, costs(), config)
    assert late.start == (2,) and not late.own_prefix


def test_subtask_without_a_free_frame_lets_others_start():
    waiting = (Waiting(1, (1, 0.0), 1, own_prefix=True), Waiting(2, (2, 0.0), 1))
    plan = plan_cycle(replace(STATE, waiting=waiting, free_frames=0), 0.0, costs(), SchedulerConfig())
    assert plan.start == (2,)


@pytest.mark.parametrize('mode', Mode)
def test_subtask_starts_on_its_own_prefix_in_every_mode(mode):
    state = replace(STATE, waiting=(Waiting(1, (1, 0.0), 1, own_prefix=True),))
    assert plan_cycle(state, 0.0, costs(), SchedulerConfig(mode)).own_prefix


@pytest.mark.parametrize(('pieces', 'finish', 'subtask'), [
    (('pick up ', 'the cup'), FinishReason.STOP, 'pick up the cup'),
    (('pick up the cup.;', '\nAction: '), FinishReason.STOP, 'pick up the cup'),
    (('pick up the cup.;\nAct',), FinishReason.LENGTH, 'pick up the cup'),  # what counts was complete
    (('pick up the',), FinishReason.LENGTH, ''),
    (('pick up the cup',), FinishReason.CANCELLED, ''),
    ((' .',), FinishReason.STOP, ''),
])
def test_only_complete_subtasks_become_instructions(pieces, finish, subtask):
    collector = SubtaskCollector()
    request = TextRequest(1, 'subtask', 'clear the table')
    for number, piece in enumerate(pieces[:-1]):
        assert not collector.push(TextDelta(request, None, number, piece, 1, 0.0))
    assert collector.push(TextDelta(request, None, 9, pieces[-1], 1, 0.0, finish)) == subtask


class FakeNode:
    """What the outputs need of an inference node; keeps what is published and posted."""

    def __init__(self):
        self.published, self.instructions = [], []
        self.active, self.instruction = True, 'clear the table'
        self.values = {'command.forward_controller': ''}
        self.session = SimpleNamespace(subtasks=SubtaskCollector())
        self.worker = SimpleNamespace(post=lambda command: command(self))

    def create_lifecycle_publisher(self, kind, topic, depth):
        return SimpleNamespace(publish=lambda message: self.published.append((topic, message.data)))

    def set_instruction(self, text):
        self.instructions.append(text)


def test_subtask_becomes_the_instruction_unless_the_task_has_changed_meanwhile():
    node = FakeNode()
    outputs = InferenceOutputs(node, {})
    request = TextRequest(1, 'subtask', 'clear the table')
    done = TextDelta(request, None, 0, 'pick up the cup', 4, 0.1, FinishReason.STOP)
    outputs.publish(done)
    assert node.instructions == ['pick up the cup'] and node.published == [('subtask', 'pick up the cup')]
    node.instruction = 'wave'
    outputs.publish(replace(done, request=TextRequest(2, 'subtask', 'clear the table')))
    assert node.instructions == ['pick up the cup']
    node.active = False
    outputs.publish(replace(done, request=TextRequest(3, 'subtask', 'wave')))
    assert node.instructions == ['pick up the cup']
