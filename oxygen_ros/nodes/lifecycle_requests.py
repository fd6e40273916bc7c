"""Requests of the lifecycle services that a node cannot follow."""

from __future__ import annotations

from lifecycle_msgs.srv import ChangeState
from rclpy.lifecycle import LifecycleNode


def refuse_impossible_transitions(node: LifecycleNode) -> None:
    """
    Have a node answer `success: false` to a transition that its state does not have, such as activating it twice.

    rclpy raises an error in its executor instead, and that ends the process of a robot that moves.
    """
    service = next(service for service in node.services if service.srv_type is ChangeState)
    change = service.callback

    def answer(request: ChangeState.Request, response: ChangeState.Response) -> ChangeState.Response:
        try:
            return change(request, response)
        except RuntimeError as error:  # RCLError; what the node's own callbacks raise never comes here
            wanted = request.transition.label or f'id {request.transition.id}'
            node.get_logger().warning(f'no transition {wanted} in this state, nothing was changed: {error}')
            response.success = False
            return response

    service.callback = answer
