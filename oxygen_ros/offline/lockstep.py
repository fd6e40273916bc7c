"""
The lockstep runner: the nodes' work in the order of a virtual clock, in one thread, without waiting.

What would run in the executors of the nodes (messages, timers) happens at its own virtual time, also while the engine
is busy with a stage that takes virtual time; what it hands to the engine waits in the inbox, as in the worker thread.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.requests import (
    ActionChunk,
    ActionSkipped,
    AdmissionError,
    Event,
    FinishReason,
    TextDelta,
    TextRequest,
)
from oxygen_ros.memory.keeper import MemoryKeeper
from oxygen_ros.models.prompt_context import ContextKind
from oxygen_ros.offline.inputs import OfflineInputs
from oxygen_ros.offline.outputs import OfflineOutputs
from oxygen_ros.offline.virtual_time import SECOND, CostedModel, StageCosts, VirtualClock
from oxygen_ros.perception.inputs import PerceptionInputs
from oxygen_ros.replay.bag import Bag
from oxygen_ros.replay.player import Player, Scheduled, Timing
from oxygen_ros.robot.joints import MissingJoint
from oxygen_ros.robot.safety import ChunkRejected
from oxygen_ros.tasks.session import Session, SessionSettings

POLL_NS = 20_000_000  # the perception node looks for frames that come by time so often
WARM_UP_NS = 3600 * SECOND  # virtual time before the recording that warming up may take
FOREVER = 2**63 - 1
GAP_NS = 30 * SECOND  # after which a pause in the recording is skipped: nothing is being done any more


class Lockstep:
    """
    One offline run.

    :param perception, inference: values of the parameters of these nodes, by name.
    :param on_input: called with every message that is taken in.
    """

    def __init__(self, bag: Bag, timing: Timing, remaps: Mapping[str, str], config: PerceptionInputs,
                 perception: Mapping[str, Any], inference: Mapping[str, Any], settings: SessionSettings,
                 costs: StageCosts, outputs: OfflineOutputs, memory: MemoryKeeper,
                 on_input: Callable[[Scheduled], None] = lambda _: None) -> None:
        self._values, self._outputs, self._memory, self._on_input = inference, outputs, memory, on_input
        self.inputs = OfflineInputs(bag, config, remaps, perception['channel_order'], self._on_instruction,
                                    self._on_utterance, inference['memory.pose_topic'])
        self.player = Player(bag, self.inputs.topics, timing)
        self.start_ns = bag.start_ns + round(timing.start_offset * SECOND)
        self.clock = VirtualClock(self.start_ns - WARM_UP_NS, self.start_ns)
        self._inbox: deque[Callable[[Engine], None]] = deque()
        self._running = False
        self.session = Session(settings, self._handle, self.clock.seconds, lambda: self.clock.now_ns,
                               wrap=lambda model: CostedModel(model, costs, self._spend))
        self.instruction = inference['instruction']
        self._messages: Iterator[Scheduled] = iter(())
        self._next: Scheduled | None = None
        self._timers: list[tuple[int, int, int, Callable[[], None]]] = []  # due, order, period, what to do
        self._action_period_ns = 0
        self._message_ns = self.start_ns  # of the last message
        self.skipped_ns = 0  # of pauses in the recording

    @property
    def end_ns(self) -> int:
        """Virtual time at which the run has ended, or has come to."""
        return self.clock.now_ns

    def run(self) -> None:
        """Play the recording to its end; then let the texts that run finish."""
        session, clock = self.session, self.clock
        clock.now_ns = self.start_ns
        session.engine.begin(self.instruction)
        self._outputs.records.instructions.append((clock.now_ns, self.instruction))
        self._messages = self.player.schedule(self.start_ns, self.start_ns)
        self._next = next(self._messages, None)
        self._start_timers()
        self._running = True
        while self._running:
            until = self._cycle()
            if until is not None:
                self._advance(until, until_posted=True)
        self._timers.clear()
        session.engine.cancel_action()
        self._finish_texts()

    def _finish_texts(self) -> None:
        engine, outputs = self.session.engine, self._outputs
        while outputs.unfinished() or engine.status().waiting or engine.status().running:
            until = self._cycle()
            if until is None:
                continue
            if not engine.status().running:
                break  # what waits does so for a frame that will never come
            self.clock.now_ns = until
        engine.end()

    def _cycle(self) -> int | None:
        """Let the engine plan and work once; return the time until which it has nothing to do, None if it had."""
        self._take_inbox()
        until = self.session.engine.run_cycle(self._poll)
        return None if until is None else max(self.clock.at(until), self.clock.now_ns + 1)

    def _poll(self) -> bool:
        if not self._inbox:
            return False
        self._take_inbox()
        return True

    def _take_inbox(self) -> None:
        while self._inbox:
            self._inbox.popleft()(self.session.engine)

    def _spend(self, nanoseconds: int) -> None:
        """A stage of the engine takes so long; what comes meanwhile happens meanwhile."""
        if self._running:
            self._advance(self.clock.now_ns + nanoseconds)
        else:
            self.clock.now_ns += nanoseconds

    # -- time --------------------------------------------------------------------------------------------------------

    def _advance(self, to_ns: int, until_posted: bool = False) -> None:
        """Do what is due until then; with `until_posted` only as long as nothing is handed to the engine."""
        clock = self.clock
        while self._next is not None:
            if self._timers[0][0] > self._message_ns + GAP_NS:
                self._skip_pause()
            due_ns = min(self._next.due_ns, self._timers[0][0])
            if due_ns > to_ns:
                break
            clock.now_ns = max(clock.now_ns, due_ns)
            if self._next.due_ns <= self._timers[0][0]:
                self._take_message()
            else:
                self._fire_timer()
            if until_posted and self._inbox:
                return
        if self._next is None:
            self._running = False  # the recording is over
        if to_ns != FOREVER and not (until_posted and not self._running):
            clock.now_ns = max(clock.now_ns, to_ns)

    def _skip_pause(self) -> None:
        """Go on right before the next message, if it is far away; the timers keep their order and distances."""
        pause_ns = self._next.due_ns - self._timers[0][0]
        if pause_ns > 0:
            self._timers = [(due_ns + pause_ns, *rest) for due_ns, *rest in self._timers]
            self.skipped_ns += pause_ns

    def _start_timers(self) -> None:
        values = self._values
        rates = [(values['action.rate'], self._action_due), (values['command.rate'], self._command_due)]
        if self.session.spec.text_head_trained:
            rates += [(values['subtask.rate'], lambda: self._submit_task('subtask', self.instruction)),
                      (values['speech.rate'], lambda: self._submit_task('speech')),
                      (values['memory.rate'], lambda: self._submit_task('memory'))]
        periods = [(round(SECOND / rate), due) for rate, due in rates if rate > 0] + [(POLL_NS, self._take_frame)]
        if values['action.rate'] > 0:
            self._action_period_ns = periods[0][0]
        order = itertools.count()
        self._timers = [(self.start_ns + period, next(order), period, due) for period, due in periods]
        heapq.heapify(self._timers)

    def _fire_timer(self) -> None:
        due_ns, order, period, due = self._timers[0]
        heapq.heapreplace(self._timers, (due_ns + period, order, period, due))
        due()

    # -- what the perception node does -------------------------------------------------------------------------------

    def _take_message(self) -> None:
        message = self._next
        self._message_ns = message.due_ns
        self._on_input(message)
        self.inputs.take(message.topic, message.type, message.data, self.clock.now_ns)
        self._take_frame()
        self._next = next(self._messages, None)

    def _take_frame(self) -> None:
        frame = self.inputs.synchronizer.take(self.clock.now_ns)
        if frame is None:
            return
        self._outputs.frame(frame, self.clock.now_ns)
        observation = frame.observation
        try:
            inputs = self.session.action.policy_input(observation)
        except (ValueError, MissingJoint) as error:
            refused = self._outputs.records.refused_frames
            refused[str(error)] = refused.get(str(error), 0) + 1
            return
        self.session.commands.measured(observation.joint_names, observation.joint_positions)
        self._inbox.append(lambda engine: engine.observe(inputs))

    # -- what the inference node does --------------------------------------------------------------------------------

    def _on_instruction(self, text: str) -> None:
        if text.strip():
            self.instruction = text
            self._outputs.records.instructions.append((self.clock.now_ns, text))
            self._inbox.append(lambda engine: engine.set_instruction(text))

    def _on_utterance(self, text: str) -> None:
        if text.strip():
            notes, wanted = [], self._values['answer.memory_notes']
            if wanted and ContextKind.MEMORY in self.session.spec.context:
                notes = [entry.text for entry in self._memory.recall(text, wanted).result()]
            self._submit(self.session.utterance(self.clock.seconds(), text, notes))

    def _submit_task(self, task: str, text: str = '') -> None:
        self._submit(self.session.texts[task].request(self.clock.seconds(), text))

    def _submit(self, request: TextRequest) -> None:
        def submit(engine: Engine) -> None:
            try:
                engine.submit(request)
            except AdmissionError as refusal:
                end = FinishReason.DROPPED, str(refusal)
            except Exception as error:  # noqa: B902 - as in the node: one request must not end the others
                end = FinishReason.ERROR, f'{type(error).__name__}: {error}'
            else:
                return
            self._handle(TextDelta(request, None, 0, '', 0, 0.0, *end))

        self._inbox.append(submit)

    def _action_due(self) -> None:
        deadline = self.clock.seconds() + self._action_period_ns / SECOND
        self._inbox.append(lambda engine: engine.request_action(deadline))

    def _command_due(self) -> None:
        command = self.session.commands.command(self.clock.now_ns)
        if command is not None:
            self._outputs.command(*command, self.clock.now_ns)

    def _handle(self, event: Event) -> None:
        if isinstance(event, TextDelta):
            self._handle_text(event)
        elif isinstance(event, ActionChunk):
            self._handle_chunk(event)
        elif isinstance(event, ActionSkipped):
            self._outputs.records.skipped.append((self.clock.now_ns, event.reason))

    def _handle_chunk(self, chunk: ActionChunk) -> None:
        session, now_ns = self.session, self.clock.now_ns
        joint_chunk, trajectory, deadline_ns = None, None, self.clock.at(chunk.deadline)
        try:
            joint_chunk = session.action.joint_chunk(chunk)
            result, trajectory = session.commands.push(joint_chunk, now_ns)
            text = result.value
        except (ChunkRejected, MissingJoint) as error:
            text = str(error)
        self._outputs.chunk(chunk, joint_chunk, deadline_ns, now_ns, text)
        if trajectory is not None:
            self._outputs.trajectory(trajectory, chunk.inputs.observation.tf_frame, now_ns)

    def _handle_text(self, delta: TextDelta) -> None:
        session, outputs, now_ns = self.session, self._outputs, self.clock.now_ns
        outputs.text(delta, now_ns)
        if delta.request.task == 'subtask':
            subtask = session.subtasks.push(delta)
            if subtask and delta.request.text == self.instruction:
                self._inbox.append(lambda engine: engine.set_instruction(subtask))
                outputs.string('/subtask', subtask, now_ns)
        elif delta.request.task == 'memory':
            note = session.notes.push(delta)
            if note is not None:
                added = self._memory.add(note.text, note.stamp_ns, note.frame_number, note.tf_frame, note.image,
                                         self.inputs.pose_at(note.stamp_ns))
                outputs.note(added.result(), now_ns)
        else:
            outputs.speech(delta, now_ns)
            for sentence in session.sentences.push(delta.request.request_id, delta.delta, delta.finish is not None):
                outputs.string('/speech/sentences', sentence, now_ns)
