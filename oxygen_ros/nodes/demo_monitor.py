"""
Node `demo_monitor`: watches the topics of the suite and talks to its services, for `oxygen_ros demo`.

Threads: the executor runs in a thread of its own and writes into the `Record`. `act` and `query_memory` may be called
by the main thread; they only send a request.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from builtin_interfaces.msg import Duration
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import JointState
from std_msgs.msg import String
from trajectory_msgs.msg import JointTrajectory

from oxygen_ros.demo.conversation import Act, Step
from oxygen_ros.demo.record import Instruction, MemoryAnswer, Milestone, Note, Question, Record
from oxygen_ros.engine.requests import FinishReason
from oxygen_ros.msg import EngineStatus, MemoryEntry, TextChunk
from oxygen_ros.nodes.background_node import BackgroundNode
from oxygen_ros.nodes.conversion import time_from_msg
from oxygen_ros.srv import Ask, Cancel, QueryMemory, SetInstruction

FINISH_NAMES = {reason.value: reason.name.lower().replace('_', ' ') for reason in FinishReason}
QUEUE = 100  # messages; nothing may be lost while this process is busy
LONG_ANSWER = 100  # tokens of the answer that gets cancelled, so that there is something to cancel
ALL_ENTRIES = 10_000
GRAPH_PERIOD = 0.5  # s


class DemoMonitor(BackgroundNode):
    """
    Watches the nodes while entered as a context manager.

    :param record: where it writes what it sees.
    :param nodes: names of the nodes whose start is a milestone.
    """

    def __init__(self, record: Record, nodes: tuple[str, ...]) -> None:
        super().__init__('demo_monitor', 'monitor')
        self.record = record
        self._expected = set(nodes)

    @property
    def services_ready(self) -> bool:
        """Whether all services have been found; a call before that is lost."""
        return all(client.service_is_ready()
                   for client in (self._ask_client, self._cancel_client, self._instruct_client, self._query_client))

    def act(self, step: Step) -> None:
        """Call the service that a step of the conversation names; the record takes in what comes of it."""
        if step.act is Act.INSTRUCT:
            self._instruct(step.words)
        else:
            self._ask(step.words, cancel=step.act is Act.ASK_AND_CANCEL, wait=step.act is Act.ASK_AND_WAIT)

    def query_memory(self) -> None:
        """Ask for all that is in the memory store; `Record.memory` gets the answer."""
        def take(response: QueryMemory.Response) -> None:
            self.record.memory = MemoryAnswer(response.success, response.message,
                                              tuple(entry.text for entry in response.entries))

        self._call(self._query_client, QueryMemory.Request(limit=ALL_ENTRIES), take)

    def _open(self, node: Node) -> None:
        def subscribe(type_: type, topic: str, take: Callable[[Any, float], None], qos: Any = QUEUE) -> None:
            def locked(message: Any) -> None:
                now = time.monotonic()
                with self.record.lock:
                    take(message, now)
            node.create_subscription(type_, topic, locked, qos)

        record = self.record
        subscribe(EngineStatus, 'status', record.take_status)
        subscribe(TextChunk, 'speech', self._take_text)
        subscribe(String, 'speech/sentences', lambda message, _: record.sentences.append(message.data))
        subscribe(MemoryEntry, 'memory', self._take_note)
        subscribe(JointTrajectory, 'joint_trajectory', lambda _, now: record.take_chunk(now))
        subscribe(JointState, 'joint_commands', lambda _, now: record.commands.append(now), qos_profile_sensor_data)
        subscribe(DiagnosticArray, '/diagnostics', self._take_diagnostics)
        self._ask_client = node.create_client(Ask, 'ask')
        self._cancel_client = node.create_client(Cancel, 'cancel')
        self._instruct_client = node.create_client(SetInstruction, 'set_instruction')
        self._query_client = node.create_client(QueryMemory, 'query_memory')
        self._graph_timer = node.create_timer(GRAPH_PERIOD, self._look_at_graph)

    def _look_at_graph(self) -> None:
        if self._expected <= set(self._node.get_node_names()):
            with self.record.lock:
                self.record.reach(Milestone.NODES, time.monotonic())
            self._graph_timer.cancel()

    def _take_text(self, message: TextChunk, now: float) -> None:
        text = self.record.text(message.request_id, message.task)
        text.text += message.delta
        text.tokens, text.frame_number = message.tokens, message.frame_number
        text.stamp_ns = time_from_msg(message.header.stamp)
        if text.first_token is None and message.tokens:
            text.first_token, text.first_seen = _seconds(message.elapsed), now
        text.finish = FINISH_NAMES.get(message.finish_reason, '')

    def _take_note(self, message: MemoryEntry, _: float) -> None:
        self.record.note = Note(message.entry_id, message.text, message.count)
        self.record.note_messages += 1

    def _take_diagnostics(self, message: DiagnosticArray, _: float) -> None:
        for status in message.status:
            level = status.level[0] if isinstance(status.level, bytes) else status.level
            self.record.diagnostics[status.name] = (level, status.message)

    def _instruct(self, words: str) -> None:
        instruction = Instruction(words)

        def take(response: SetInstruction.Response) -> None:
            instruction.accepted, instruction.message = response.accepted, response.message
            self._instructed(instruction)

        with self.record.lock:
            self.record.instructions.append(instruction)
        self._call(self._instruct_client, SetInstruction.Request(instruction=words, resume=True), take)

    def _ask(self, words: str, cancel: bool, wait: bool) -> None:
        question = Question(words, time.monotonic(), cancel=cancel, wait=wait)

        def take(response: Ask.Response) -> None:
            question.accepted, question.message = response.accepted, response.message
            question.request_id, question.answer = response.request_id, response.answer
            self._asked(question)
            if cancel and response.accepted:
                self._call(self._cancel_client, Cancel.Request(request_id=response.request_id), take_cancelled)

        def take_cancelled(response: Cancel.Response) -> None:
            question.cancelled = list(response.cancelled)

        with self.record.lock:
            self.record.questions.append(question)
        request = Ask.Request(question=words, wait=wait, temperature=-1.0, seed=len(self.record.questions),
                              max_tokens=LONG_ANSWER if cancel else 0)
        self._call(self._ask_client, request, take)

    def _instructed(self, instruction: Instruction) -> None:
        """An instruction was taken or refused."""

    def _asked(self, question: Question) -> None:
        """A question was taken or refused. Its answer may have begun, or even ended."""

    def _call(self, client: Any, request: Any, take: Callable[[Any], None]) -> None:
        """Call a service; `take` gets the response in the executor's thread, with the lock held."""
        def done(future: Any) -> None:
            with self.record.lock:
                take(future.result())

        client.call_async(request).add_done_callback(done)


def _seconds(duration: Duration) -> float:
    return duration.sec + duration.nanosec / 1e9
