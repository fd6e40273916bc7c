"""Texts of the inference node: utterances and tasks go in, every one of them ends, notes are remembered."""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import Future as ThreadFuture
from typing import TYPE_CHECKING

from rclpy.clock import Clock, ClockType
from rclpy.task import Future
from std_msgs.msg import String

from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.requests import AdmissionError, FinishReason, TextDelta, TextRequest
from oxygen_ros.models.prompt_context import ContextKind
from oxygen_ros.nodes.pose_input import PoseInput
from oxygen_ros.tasks.memory import Note
from oxygen_ros.tasks.open_texts import OpenTexts

if TYPE_CHECKING:
    from oxygen_ros.nodes.inference import InferenceNode

RECALL_SECONDS = 0.25  # an answer waits no longer for what memory has about the question


class InferenceTexts:
    """
    Hands texts to the engine. All methods in the executor's thread.

    :param node: its session, worker, memory and mailbox do the work.
    """

    def __init__(self, node: InferenceNode) -> None:
        self._node = node
        self.open = OpenTexts()
        self._told = False  # that a context did not fit
        self._poses: PoseInput | None = None
        self._steady = Clock(clock_type=ClockType.STEADY_TIME)

    def configured(self) -> None:
        """Say what the model cannot be told, and listen for poses."""
        node, known = self._node, self._node.session.spec.context
        self._told = False
        self._poses = PoseInput(node, node.values['memory.pose_topic'])
        missing = [words for kind, name, words in (
            (ContextKind.CONVERSATION, 'answer.history', 'conversations'),
            (ContextKind.MEMORY, 'answer.memory_notes', 'notes from memory'))
            if node.values[name] and kind not in known]
        if missing and node.session.spec.text_head_trained:
            node.get_logger().info(f'prompts of model {node.session.spec.name} take no {" and no ".join(missing)} '
                                   '(context in its model file): questions are answered without')

    def released(self) -> None:
        """Stop listening."""
        if self._poses is not None:
            self._poses.close()
            self._poses = None

    def utterance(self, message: String) -> None:
        """Answer what somebody said, in the conversation of the topic."""
        node, text, arrived = self._node, message.data, time.monotonic()
        if not node.active:
            return
        if not text.strip():
            node.diagnostics.text_ignored('utterance', 'it is empty')
            return

        def submit(notes: Future) -> None:
            if node.active:
                self.submit(node.session.utterance(arrived, text, notes.result()))

        self.recall(text).add_done_callback(submit)

    def submit_task(self, task: str, text: str = '') -> None:
        """Start a text of a task."""
        self.submit(self._node.session.texts[task].request(time.monotonic(), text))

    def submit(self, request: TextRequest) -> None:
        """Start a text; a refusal is published as a piece of text that says so."""
        node = self._node

        def submit(engine: Engine) -> None:
            try:
                engine.submit(request)
            except AdmissionError as refusal:
                end = FinishReason.DROPPED, str(refusal)
            except Exception as error:  # noqa: B902 - one request must not end the others
                end = FinishReason.ERROR, f'{type(error).__name__}: {error}'
            else:
                return
            engine.statistics.counters.texts_unfinished += 1
            node.emit(TextDelta(request, None, 0, '', 0, 0.0, *end))

        self.open.opened(request)
        node.worker.post(submit)

    def arrived(self, delta: TextDelta) -> None:
        """Take in a piece of text from the engine."""
        self.open.arrived(delta)
        if delta.left_out and not self._told:
            self._told = True
            self._node.get_logger().info(f'prompt of request {delta.request.request_id}: {delta.left_out}; further '
                                         'ones are told on speech only')

    def fail(self, message: str) -> None:
        """End all texts, because the engine cannot."""
        for delta in self.open.fail(message):
            self._node.outputs.publish(delta)

    def recall(self, question: str) -> Future:
        """Return a future of what memory has about a question: texts, most relevant first; none after a short time."""
        node = self._node
        result = Future(executor=node.executor)
        wanted = node.values['answer.memory_notes']
        if not wanted or ContextKind.MEMORY not in node.session.spec.context:
            result.set_result(())
            return result

        def settle(notes: Sequence[str]) -> None:
            node.destroy_timer(timer)
            if not result.done():
                result.set_result(tuple(notes))

        def found(entries: ThreadFuture) -> None:
            failed = entries.cancelled() or entries.exception() is not None
            node.mailbox.put(lambda: settle(() if failed else [entry.text for entry in entries.result()]))

        timer = node.create_timer(RECALL_SECONDS, lambda: settle(()), clock=self._steady)
        node.memory.recall(question, wanted).add_done_callback(found)
        return result

    def remember(self, note: Note) -> ThreadFuture:
        """Store a note; the future gives the entry."""
        pose = self._poses.at(note.stamp_ns) if self._poses is not None else None
        return self._node.memory.add(note.text, note.stamp_ns, note.frame_number, note.tf_frame, note.image, pose)
