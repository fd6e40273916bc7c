"""Services of the inference node: ask, cancel, query_memory, set_instruction, stop."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.qos import QoSProfile
from rclpy.task import Future

from oxygen_ros.engine.requests import AdmissionError, BargeIn, TextDelta, instruction_problem
from oxygen_ros.errors import OxygenError
from oxygen_ros.memory.store import MOST_PICTURE_BYTES
from oxygen_ros.nodes.conversion import time_from_msg, time_to_msg
from oxygen_ros.nodes.inference_messages import entry_to_msg, explanation
from oxygen_ros.nodes.remote_text import shown
from oxygen_ros.srv import Ask, Cancel, QueryMemory, SetInstruction, Stop

if TYPE_CHECKING:
    from oxygen_ros.nodes.inference import InferenceNode

NOT_ACTIVE = 'the inference node is not active: activate it first'
# As many calls may come while the executor is busy, for example with a transition. ROS's usual 10 would lose the rest,
# and whoever called would wait for ever.
CALLS = QoSProfile(depth=100)
BARGE_IN = {Ask.Request.BARGE_IN_SUPERSEDE: BargeIn.SUPERSEDE, Ask.Request.BARGE_IN_QUEUE: BargeIn.QUEUE,
            Ask.Request.BARGE_IN_BESIDE: BargeIn.BESIDE}


class InferenceServices:
    """
    Answers service calls without ever blocking the executor: what takes time is awaited.

    :param node: its session, worker, memory and mailbox do the work.
    """

    def __init__(self, node: InferenceNode) -> None:
        self._node = node
        self._waiting: dict[int, tuple[Future, list[str]]] = {}  # request id -> (its last piece, text so far)
        # A callback that awaits occupies its group: an exclusive one would stop every timer and subscription in it.
        options = {'callback_group': ReentrantCallbackGroup(), 'qos_profile': CALLS}
        node.create_service(Ask, 'ask', self._ask, **options)
        node.create_service(Cancel, 'cancel', self._cancel, **options)
        node.create_service(QueryMemory, 'query_memory', self._query_memory, **options)
        node.create_service(SetInstruction, 'set_instruction', self._set_instruction, **options)
        node.create_service(Stop, 'stop', self._stop, **options)

    def text_arrived(self, delta: TextDelta) -> None:
        """Collect the text of calls that wait for it."""
        waiting = self._waiting.get(delta.request.request_id)
        if waiting is None:
            return
        waiting[1].append(delta.delta)
        if delta.finish is not None:
            del self._waiting[delta.request.request_id]
            waiting[0].set_result(delta)

    async def _ask(self, request: Ask.Request, response: Ask.Response) -> Ask.Response:
        node = self._node
        if not node.active:
            response.message = NOT_ACTIVE
            return response
        if not request.question.strip():
            response.message = 'the question is empty'
            return response
        sampling: dict[str, object] = {'seed': request.seed % 2**63, 'stop': tuple(request.stop)}
        if request.max_tokens:
            sampling['max_tokens'] = request.max_tokens
        if request.temperature >= 0:
            sampling['temperature'] = request.temperature
        if request.top_p:
            sampling['top_p'] = request.top_p
        arrived = time.monotonic()
        notes = () if request.without_memory else await node.texts.recall(request.question)
        if not node.active:  # any more
            response.message = NOT_ACTIVE
            return response
        try:
            barge_in = node.session.barge_in if not request.barge_in else BARGE_IN[request.barge_in]
            text = node.session.texts['answer'].request(
                arrived, request.question, request.timeout or None, request.conversation,
                barge_in, notes, **sampling)
        except KeyError:
            response.message = f'barge_in {request.barge_in} is none of the constants of Ask'
            return response
        except ValueError as error:
            response.message = str(error)
            return response
        answer: list[str] = []
        finished = Future(executor=node.executor)
        if request.wait:
            self._waiting[text.request_id] = (finished, answer)
        node.texts.open.opened(text)
        _, error = await node.mailbox.awaitable(node.worker.call(lambda engine: engine.submit(text)))
        if error is not None:
            node.texts.open.refused(text)
            self._waiting.pop(text.request_id, None)
            response.message = str(error) if isinstance(error, (AdmissionError, OxygenError)) else (
                f'the question failed: {error!r}')
            return response
        response.accepted, response.request_id = True, text.request_id
        if request.wait:
            last: TextDelta = await finished
            response.answer = ''.join(answer)
            response.finish_reason = last.finish.value
            response.message = explanation(last)
            if last.inputs is not None:
                response.frame_number = last.inputs.number
                response.frame_stamp = time_to_msg(last.inputs.stamp_ns)
        return response

    async def _cancel(self, request: Cancel.Request, response: Cancel.Response) -> Cancel.Response:
        node = self._node
        if not node.active:
            response.message = NOT_ACTIVE
            return response
        ids, error = await node.mailbox.awaitable(node.worker.call(lambda engine: engine.cancel(request.request_id)))
        if error is not None:
            response.message = f'cancelling failed: {error!r}'
            return response
        response.cancelled = ids
        if ids:
            response.message = f'cancelled {len(ids)}'
        elif request.request_id:
            response.message = (f'request {request.request_id} neither waits nor runs: it has finished already, '
                                'or never was')
        else:
            response.message = 'no text request waits or runs'
        return response

    async def _query_memory(self, request: QueryMemory.Request, response: QueryMemory.Response) -> QueryMemory.Response:
        node = self._node
        if node.memory is None:
            response.message = 'the inference node is not configured: configure it first'
            return response
        from_ns, to_ns = time_from_msg(request.from_time) or None, time_from_msg(request.to_time) or None
        query = node.memory.query(request.words, from_ns, to_ns, request.limit or 20, request.with_thumbnails,
                                  request.by_meaning)
        entries, error = await node.mailbox.awaitable(query)
        if error is not None:
            response.message = str(error)
            return response
        response.success, response.entries = True, [entry_to_msg(entry) for entry in entries]
        response.message = f'{len(entries)} entries'
        if left_out := sum(entry.picture_left_out for entry in entries):
            response.message += (f'; {left_out} pictures are left out, for a response holds at most '
                                 f'{MOST_PICTURE_BYTES >> 20} MiB of them: ask for fewer entries, or another time')
        return response

    def _set_instruction(self, request: SetInstruction.Request, response: SetInstruction.Response,
                         ) -> SetInstruction.Response:
        node, instruction = self._node, request.instruction
        if not node.active:
            response.message = NOT_ACTIVE
        elif problem := instruction_problem(instruction):
            response.message = problem
        else:
            node.set_instruction(instruction)
            response.accepted = True
            response.message = 'accepted'
            if request.resume and node.session.commands.stopped:
                node.get_logger().info('resuming after a stop')
                node.session.commands.resume(node.now_ns())
            elif node.session.commands.stopped:
                response.message = 'accepted, but the robot is stopped: set resume to go on'
        return response

    def _stop(self, request: Stop.Request, response: Stop.Response) -> Stop.Response:
        node = self._node
        if not node.active:
            response.message = 'the inference node is not active: it commands nothing'
            return response
        node.outputs.hold()
        node.worker.post(lambda engine: engine.cancel_action())
        if request.cancel_text:
            node.worker.post(lambda engine: engine.cancel())
        node.get_logger().warning(f'stopped: {shown(request.reason) or "no reason given"}')
        response.stopped, response.message = True, 'the robot holds its position'
        return response
