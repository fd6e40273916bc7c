"""Transitions of lifecycle nodes that go wrong: rclpy would swallow what they raise."""

from __future__ import annotations

import functools
import traceback
from collections.abc import Callable

from rclpy.lifecycle import LifecycleNode, LifecycleState, TransitionCallbackReturn

Transition = Callable[[LifecycleNode, LifecycleState], TransitionCallbackReturn]


def logged(transition: Transition) -> Transition:
    """Have a callback such as `on_activate` log what it raises with its traceback; `on_error` comes next."""
    @functools.wraps(transition)
    def run(node: LifecycleNode, state: LifecycleState) -> TransitionCallbackReturn:
        try:
            return transition(node, state)
        except Exception:  # noqa: B902 - whatever it is, somebody must be able to read it
            name = transition.__name__.removeprefix('on_')
            node.get_logger().error(f'{name} failed:\n{traceback.format_exc()}')
            return TransitionCallbackReturn.ERROR

    return run


def do_all(node: LifecycleNode, *steps: Callable[[], object]) -> None:
    """Take every step down, also after one that fails; what they raise is logged."""
    for step in steps:
        try:
            step()
        except Exception:  # noqa: B902 - the other steps must be taken
            node.get_logger().error(f'a step of the way down failed:\n{traceback.format_exc()}')
