# SPDX-License-Identifier: Apache-2.0
"""The result of ``derive``: two graphs and how values get from one to the other."""

from __future__ import annotations

import attrs

from fusedsl.gradients.partition import Choice
from fusedsl.graph.graph import Graph


@attrs.frozen
class IncomingGradient:
    """The gradient of output ``index`` of the function."""

    index: int


@attrs.frozen
class ForwardInput:
    """Tensor input ``index`` of the function; ``shape_only``: no element is read, any tensor of this shape will do."""

    index: int
    shape_only: bool = False


@attrs.frozen
class ForwardOutput:
    """Output ``index`` of the forward graph: a result of the function, or a saved value after them."""

    index: int


Source = IncomingGradient | ForwardInput | ForwardOutput


@attrs.frozen
class Backward:
    """A function split into a forward graph that also gives what its gradients need, and a backward graph.

    Attributes:
        forward: takes the function's inputs and scalars; returns its outputs, then the saved values.
        backward: returns one gradient a connected wanted input, in the input's dtype and shape.
        results: number of outputs of the function; ``forward.outputs[results:]`` are the saved values.
        wanted: the inputs that need a gradient, as indices into ``forward.inputs``.
        differentiable: per output of the function, whether a gradient can come in.
        sources: per tensor input of ``backward``, where it comes from.
        scalars: per scalar input of ``backward``, the index of the forward scalar input it repeats.
        gradients: per wanted input, the output of ``backward`` that is its gradient; None if no output depends on it
            through differentiable ops (torch leaves ``grad`` None).
        choices: what is kept, saved and computed again, and why.
    """

    forward: Graph
    backward: Graph
    results: int
    wanted: tuple[int, ...]
    differentiable: tuple[bool, ...]
    sources: tuple[Source, ...]
    scalars: tuple[int, ...]
    gradients: tuple[int | None, ...]
    choices: tuple[Choice, ...]

    @property
    def saved(self) -> tuple[str, ...]:
        """Names of the values that the forward graph returns only for the backward graph."""
        return tuple(self.forward[i].name for i in self.forward.outputs[self.results :])

    def explain(self) -> str:
        """The choices as text, one a line."""
        return "\n".join(map(str, self.choices))
