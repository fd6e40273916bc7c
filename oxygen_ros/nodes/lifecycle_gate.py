"""LifecycleGate: waits until a lifecycle node is active."""

from __future__ import annotations

import threading
import time

from lifecycle_msgs.msg import State
from lifecycle_msgs.srv import GetState
from rclpy.node import Node

POLL_SECONDS = 0.1
ANSWER_SECONDS = 1.0  # after that a question counts as lost, for example because the other node started anew


class LifecycleGate:
    """
    Asks a lifecycle node for its state until it is active.

    Made in the thread that makes the node; `wait` runs in a thread of its own while an executor spins the node.

    :param name: of the lifecycle node, relative to the namespace of the node that asks. Empty: nothing to wait for.
    """

    def __init__(self, node: Node, name: str):
        self._logger = node.get_logger()
        self._name = name
        self._client = node.create_client(GetState, f'{name}/get_state') if name else None

    def wait(self, stop: threading.Event) -> None:
        """Return when the lifecycle node is active, or when `stop` is set."""
        if self._client is None or self._is_active():
            return
        self._logger.info(f'waiting until node {self._name!r} is active')
        while not stop.wait(POLL_SECONDS):
            if self._is_active():
                self._logger.info(f'node {self._name!r} is active')
                return

    def _is_active(self) -> bool:
        if not self._client.service_is_ready():
            return False
        answer = self._client.call_async(GetState.Request())
        give_up = time.monotonic() + ANSWER_SECONDS
        while not answer.done():
            if time.monotonic() > give_up:
                self._client.remove_pending_request(answer)
                return False
            time.sleep(0.01)
        return answer.result().current_state.id == State.PRIMARY_STATE_ACTIVE
