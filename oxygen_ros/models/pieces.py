"""
Compiles what stands between the products and attention of a layer: norms, rotations, gates, activations.

These are some 25 small operations per layer. A compiled piece is one call that reads and writes each number once. What
it is given is the same whatever form the weights have (see packing.py), how long a prefix is, and how many layers there
are, so that a handful of small functions serves a network of any size. Pieces are methods of the parts of a network
(`PIECES`); a compiled one hides the method of its name. They are compiled for what they were called with in a run of
the network, so that nobody has to say it twice.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from oxygen_ros.models.action_expert import ActionExpert
from oxygen_ros.models.gemma import GemmaLayer
from oxygen_ros.models.layers import GatedLinear
from oxygen_ros.models.qwen3_vl import QwenLayer

# A compiled piece is not put in place if it is off by more, of its largest number: one that was made for other numbers
# is. Rounding is less: of float32 some 1e-7, of bfloat16, which rounds once where eager operations round thrice, 1e-2.
TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 0.05}
PIECES: dict[type[nn.Module], tuple[str, ...]] = {
    ActionExpert: ('norm', 'turn', 'add_norm'),
    GemmaLayer: ('norm', 'turn'),
    QwenLayer: ('norm',),  # its rotation has weights of its own
    GatedLinear: ('activate',),
}
_shape = operator.attrgetter('shape')

Function = Callable[..., object]
# Function, examples of its arguments, and which of them have a number of rows that changes -> the same, compiled.
Compiler = Callable[[Function, tuple[torch.Tensor, ...], Sequence[bool]], Function]


class FixedShapes:
    """
    A compiled function, which does not look at shapes. What has others than its own, such as a chunk of which each
    action has a time of its own, is done by the eager one.

    :param examples: arguments of the shapes that it was compiled for.
    """

    def __init__(self, eager: Function, compiled: Function, examples: Sequence[torch.Tensor]) -> None:
        self._eager, self._compiled = eager, compiled
        self._shapes = tuple(map(_shape, examples))

    def __call__(self, *tensors: torch.Tensor) -> object:
        """Do the function."""
        return (self._compiled if tuple(map(_shape, tensors)) == self._shapes else self._eager)(*tensors)


@dataclass
class Piece:
    """
    A piece that all modules of a kind in a part of a network have in common.

    :param owners: these modules. :param eager: method of the first. :param calls: what it was called with.
    :param function: what is put in place; None: nothing.
    """

    name: str
    owners: list[nn.Module]
    eager: Function
    calls: dict[tuple, tuple[torch.Tensor, ...]] = field(default_factory=dict)
    function: Function | None = None

    def put(self) -> None:
        """Put the compiled function in place."""
        if self.function is not None:
            self._set(self.function)

    def take_out(self) -> None:
        """Have the eager one again."""
        for owner in self.owners:
            owner.__dict__.pop(self.name, None)

    def record(self) -> None:
        """Note, until it is taken out, what the piece is called with."""
        self._set(self._recorded)

    def compile(self, compiler: Compiler) -> None:
        """
        Compile it for what it was called with; what was not called, or each time with other types, stays as it is.

        :raises Exception: whatever the compiler raises. :raises ValueError: the compiled function gives other numbers.
        """
        calls, self.calls = list(self.calls.values()), {}
        kinds = {tuple((tensor.dtype, tensor.shape[1:]) for tensor in call) for call in calls}
        if len(kinds) != 1 or not all(tensor.is_contiguous() for call in calls for tensor in call):
            return
        many = [len({tensor.shape[0] for tensor in column}) > 1 for column in zip(*calls)]
        function = compiler(self.eager, calls[0], many)
        for call in calls:
            _require_equal(self.name, function(*call), self.eager(*(tensor.clone() for tensor in call)))
        self.function = function if any(many) else FixedShapes(self.eager, function, calls[0])

    def _set(self, function: Function) -> None:
        for owner in self.owners:
            setattr(owner, self.name, function)

    def _recorded(self, *tensors: torch.Tensor) -> object:
        key = tuple((tensor.dtype, tensor.shape, tensor.stride()) for tensor in tensors)
        if key not in self.calls:
            self.calls[key] = tuple(tensor.clone(memory_format=torch.preserve_format) for tensor in tensors)
        return self.eager(*tensors)


def pieces_of(part: nn.Module) -> list[Piece]:
    """Return the pieces of a part of a network, such as the decoder or the action expert."""
    owners: dict[tuple[type, str], list[nn.Module]] = {}
    for module in part.modules():
        for name in PIECES.get(type(module), ()):
            owners.setdefault((type(module), name), []).append(module)
    return [Piece(name, modules, getattr(modules[0], name)) for (_, name), modules in owners.items()]


def record_calls(pieces: Iterable[Piece], run: Callable[[], object]) -> None:
    """Note what pieces are called with in a run of the network."""
    pieces = list(pieces)
    for piece in pieces:
        piece.record()
    try:
        run()
    finally:
        for piece in pieces:
            piece.take_out()


def _require_equal(name: str, compiled: object, eager: object) -> None:
    for one, other in zip(*(result if isinstance(result, tuple) else (result,) for result in (compiled, eager))):
        error = (one.float() - other.float()).abs().max() / other.float().abs().max().clamp(min=1e-6)
        if not error <= TOLERANCES[other.dtype]:  # NaN is not
            raise ValueError(f'the compiled piece {name} is off by {float(error):.2g} of its largest number')
