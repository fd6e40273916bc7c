"""Decides, by measuring, which parts of a network run compiled pieces."""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable

from torch import nn

from oxygen_ros.engine.cost_model import CostModel, Stage
from oxygen_ros.errors import ConfigError
from oxygen_ros.models.action_expert import ActionExpert
from oxygen_ros.models.ahead_of_time import compile_ahead
from oxygen_ros.models.gemma import GemmaDecoder
from oxygen_ros.models.pieces import Compiler, Piece, pieces_of, record_calls

logger = logging.getLogger(__name__)


class Compile(str, enum.Enum):
    """Whether what stands between the products of a layer is compiled."""

    AUTO = 'auto'  # where a measurement at the start finds it faster
    ON = 'on'
    OFF = 'off'


# What each part of a network does. A part is compiled as a whole: what its stages take together counts.
STAGES: dict[type[nn.Module], tuple[Stage, ...]] = {
    ActionExpert: (Stage.DENOISE,),
    GemmaDecoder: (Stage.PREFILL, Stage.DECODE),
}


def use_compiled(choice: Compile, network: nn.Module, most_branches: int, measure: Callable[[], CostModel],
                 compiler: Compiler | None = None) -> set[Stage]:
    """
    Let the parts of a network run compiled pieces, and return the stages that do. All of it happens here: whatever runs
    later finds its code ready.

    :param most_branches: batch size by which decode steps are judged.
    :param measure: warms up and measures every stage as it then is. It is not called if the choice is OFF.
    :param compiler: None is `compile_ahead`.
    :raises ConfigError: they are to be compiled, and it fails.
    """
    parts = [module for module in network.modules() if isinstance(module, tuple(STAGES))]
    _each_piece(parts, Piece.take_out)
    if choice is Compile.OFF or not parts or not _compile(parts, choice, measure, compiler or compile_ahead):
        return set()
    if choice is Compile.ON:
        _each_piece(parts, Piece.put)
        return {stage for part in parts for stage in _stages(part)}
    before = measure()
    _each_piece(parts, Piece.put)
    after = measure()
    chosen: set[Stage] = set()
    for part in parts:
        stages = _stages(part)
        compiled, eager = (sum(costs.predict(stage, most_branches if stage is Stage.DECODE else 1, deviations=0)
                               for stage in stages) for costs in (after, before))
        logger.info('%s: %.2f ms compiled, %.2f ms not', ' and '.join(stage.value for stage in stages), 1e3 * compiled,
                    1e3 * eager)
        if compiled < eager:
            chosen.update(stages)
        else:
            _each_piece([part], Piece.take_out)
    return chosen


def _compile(parts: list[nn.Module], choice: Compile, run: Callable[[], object], compiler: Compiler) -> bool:
    """Compile what is not compiled yet; False, with a warning, where that fails and need not succeed."""
    new = {part: pieces_of(part) for part in parts if not part.pieces}  # several engines of a network compile it once
    pieces = [piece for of_part in new.values() for piece in of_part]
    if not pieces:
        return True
    logger.info('compiling, which takes a minute the first time on a machine')
    record_calls(pieces, run)
    try:
        for piece in pieces:
            piece.compile(compiler)
    except Exception as error:  # noqa: B902 - whatever a compiler raises, the work can be done without
        reason = f'{type(error).__name__}: {" ".join(str(error).split())[:300]}'
        remedy = 'install a C++ compiler (apt install g++) and torch 2.6 or newer'
        if choice is Compile.ON:
            raise ConfigError(f'compile is on, and nothing can be compiled ({reason}): {remedy}, or choose auto or '
                              'off') from error
        logger.warning('nothing can be compiled, work goes on without (%s): %s, or set compile to off', reason, remedy)
        return False
    for part, of_part in new.items():
        part.pieces = of_part
    return True


def _each_piece(parts: list[nn.Module], do: Callable[[Piece], None]) -> None:
    for part in parts:
        for piece in part.pieces:
            do(piece)


def _stages(part: nn.Module) -> tuple[Stage, ...]:
    return next(stages for kind, stages in STAGES.items() if isinstance(part, kind))
