"""What the inference node says in its log about a model that it has loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oxygen_ros.nodes.inference import InferenceNode


def report_model(node: InferenceNode, seconds: float) -> None:
    """
    Log what was loaded, and what it cannot do.

    :param seconds: that it took.
    """
    spec, log = node.session.spec, node.get_logger()
    size = node.session.engine.cache.spec.total_bytes() / 2**20
    log.info(f'model {spec.name} (weights: {spec.weights}) ready after {seconds:.1f} s, KV cache {size:.1f} MiB')
    if not spec.text_head_trained:
        log.warning(f'model {spec.name} was never trained to speak: it acts, but there are no lines, answers or notes '
                    '(text_head_trained in its model file)')
    if spec.random_weights:
        log.warning('the weights are random: actions and texts mean nothing' + (
            '' if node.may_move else '; no commands are published, allow_random_weights publishes them'))
