# SPDX-License-Identifier: Apache-2.0
"""What an operation is: a plain PyTorch function, how its arguments are made, and its minimal traffic."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import cast

import attrs
import torch
from torch import Tensor

#: rows, columns of a matrix; or batch, channels, height, width of an image.
Shape = tuple[int, ...]

#: What a function gives.
Results = Tensor | tuple[Tensor, ...]


def as_tuple(results: Results) -> tuple[Tensor, ...]:
    """The tensors of a result, one or several."""
    return (results,) if isinstance(results, Tensor) else tuple(results)


@attrs.frozen
class Kind:
    """What an argument or a result looks like.

    Attributes:
        dims: which extents of the operation's shape it has; None: all.
        dtype: None: the one that is measured.
        channels_last: whether its second extent lies innermost in memory.
    """

    dims: tuple[int, ...] | None = None
    dtype: torch.dtype | None = None
    channels_last: bool = False

    def shape(self, shape: Shape) -> Shape:
        """Its extents in an operation of ``shape``."""
        return shape if self.dims is None else tuple(shape[dim] for dim in self.dims)

    def nbytes(self, shape: Shape, dtype: torch.dtype) -> int:
        """Its bytes in an operation of ``shape`` and ``dtype``."""
        numel = 1
        for extent in self.shape(shape):
            numel *= extent
        return numel * (self.dtype or dtype).itemsize

    def make(self, shape: Shape, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        """A random tensor: normal numbers, or positions along the operation's second extent."""
        sizes, device = self.shape(shape), generator.device
        if self.dtype is torch.int64:
            return torch.randint(shape[1], sizes, device=device, generator=generator)
        chosen = self.dtype or dtype
        if not self.channels_last:
            return torch.randn(sizes, dtype=chosen, device=device, generator=generator)
        batch, channels, *space = sizes
        moved = torch.randn(batch, *space, channels, dtype=chosen, device=device, generator=generator)
        return moved.movedim(-1, 1)


#: By the character that stands for it in an operation.
KINDS: dict[str, Kind] = {
    "m": Kind(),  # a matrix
    "r": Kind((1,)),  # a vector along a row: one element a column
    "c": Kind((0,)),  # one element a row
    "t": Kind((0,), torch.int64),  # a column's index a row
    "i": Kind(channels_last=True),  # an image
    "p": Kind((1,), torch.float32),  # a parameter a channel
}


@attrs.frozen
class Operation:
    """One operation.

    Attributes:
        name: what tables call it; also the key peers look up.
        function: the eager function of the arguments.
        arguments: one character of ``KINDS`` an argument.
        result: one character of ``KINDS`` a result.
        unread: arguments that need not be read.
        changed: arguments that are written in place; they count as results as well.
        forward: where ``function`` gives gradients, what it gives the gradients of: a function of all arguments but the
            last, which is the gradient that comes in. Then only the backward pass is timed.
        wanted: the arguments of ``forward`` whose gradients are the results.
    """

    name: str
    function: Callable[..., Results]
    arguments: str
    result: str
    unread: tuple[int, ...] = ()
    changed: tuple[int, ...] = ()
    forward: Callable[..., Tensor] | None = None
    wanted: tuple[int, ...] = ()

    def make_arguments(self, shape: Shape, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
        """Random arguments, the same for every contestant."""
        generator = torch.Generator(device).manual_seed(0)
        return tuple(KINDS[kind].make(shape, dtype, generator) for kind in self.arguments)

    def traffic_bytes(self, shape: Shape, dtype: torch.dtype) -> int:
        """Bytes that must move: every argument read once, every result written once."""
        read = [kind for index, kind in enumerate(self.arguments) if index not in self.unread]
        written = [*self.result, *(self.arguments[index] for index in self.changed)]
        return sum(KINDS[kind].nbytes(shape, dtype) for kind in read + written)

    def private(self, arguments: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The arguments with copies of those that the operation changes."""
        return tuple(a.clone() if index in self.changed else a for index, a in enumerate(arguments))

    def values(self, results: Results, arguments: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """All that a call gave: its results, then the arguments it changed."""
        return (*as_tuple(results), *(arguments[index] for index in self.changed))

    def evaluate(self, arguments: Sequence[Tensor], dtype: torch.dtype | None = None) -> tuple[Tensor, ...]:
        """The values of the eager function, computed in ``dtype`` if given; the arguments stay as they are."""
        own = self.private(arguments)
        if dtype is not None:
            own = tuple(a.to(dtype) if a.is_floating_point() else a for a in own)
        return self.values(self.function(*own), own)


@attrs.frozen
class Suite:
    """Operations that are measured together.

    Attributes:
        operations: in the order of the table.
        shapes: at which they are measured.
    """

    operations: tuple[Operation, ...]
    shapes: tuple[Shape, ...]


# gradients ---------------------------------------------------------------------------------------------------------


def record(
    forward: Callable[..., Tensor], wanted: Sequence[int], inputs: Sequence[Tensor]
) -> tuple[Tensor, list[Tensor]]:
    """Call ``forward`` with gradients recorded.

    Args:
        forward: the function.
        wanted: the arguments that require a gradient.
        inputs: its arguments; they are not changed into tensors that require a gradient themselves. Those without a
            gradient are copied, so that a function which changes some (running statistics) leaves other recorded calls
            alone.

    Returns:
        The result, and the tensors whose gradients are wanted.
    """
    own = [a.detach().requires_grad_() if index in wanted else a.clone() for index, a in enumerate(inputs)]
    with torch.enable_grad():
        return forward(*own), [own[index] for index in wanted]


def backward_call(
    forward: Callable[..., Tensor], wanted: Sequence[int], arguments: Sequence[Tensor]
) -> Callable[[], tuple[Tensor, ...]]:
    """The backward pass alone: the forward pass is recorded here, the call pulls the last argument back through it."""
    result, targets = record(forward, wanted, arguments[:-1])
    incoming = arguments[-1]
    return lambda: torch.autograd.grad(result, targets, incoming, retain_graph=True)


def _pull_back(forward: Callable[..., Tensor], wanted: Sequence[int], *arguments: Tensor) -> Results:
    gradients = backward_call(forward, wanted, arguments)()
    return gradients[0] if len(gradients) == 1 else gradients


def gradient(
    name: str,
    forward: Callable[..., Tensor],
    arguments: str,
    wanted: tuple[int, ...],
    unread: tuple[int, ...] = (),
) -> Operation:
    """The gradients of a function as an operation; the last of ``arguments`` is the gradient that comes in."""
    function = cast(Callable[..., Results], functools.partial(_pull_back, forward, wanted))
    result = "".join(arguments[index] for index in wanted)
    return Operation(name, function, arguments, result, unread, forward=forward, wanted=wanted)
