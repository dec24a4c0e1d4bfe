# SPDX-License-Identifier: Apache-2.0
"""What autograd allows of functions that change arguments in place; a changed argument never carries a gradient.

The checks are made where a call is recorded: with grad mode off, or where nothing requires grad, all is allowed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from torch import Tensor

from fusedsl.frontend.records import Update
from fusedsl.gradients import ForwardInput, Source
from fusedsl.gradients.activity import active_nodes
from fusedsl.gradients.errors import InPlaceGradient
from fusedsl.graph.graph import Graph

_NO_GRAD = "with torch.no_grad(), in the function or around the call"


def check_leaves(updates: Sequence[Update], tensors: Sequence[Tensor]) -> None:
    """Refuse changes that autograd would record of tensors that require grad.

    Raises:
        InPlaceGradient: there is one.
    """
    for update in updates:
        tensor = tensors[update.input]
        if update.recorded and tensor.requires_grad:
            what = "a leaf Variable that requires grad" if tensor.is_leaf else "a tensor that requires grad"
            _fail(update, f"{what} is being used in an in-place operation: {update.operation}", _NO_GRAD)


def check_gradients(graph: Graph, updates: Sequence[Update], wanted: Sequence[int]) -> None:
    """Refuse new values of inputs that would carry a gradient, and results that need the gradient of a new value.

    Args:
        graph: with the new values among its outputs.
        updates: which they are.
        wanted: indices of the inputs that require grad.

    Raises:
        InPlaceGradient: there is one.
    """
    active = active_nodes(graph, [graph.inputs[i] for i in wanted])
    for update in updates:
        if graph.outputs[update.output] in active:
            name = graph[graph.inputs[update.input]].name
            message = f"in-place {update.operation} would give {name!r} a gradient"
            _fail(update, message, f"{_NO_GRAD}, or change it by detached values: x.detach()")
    for update in updates:
        if update.input in wanted:
            _check_readers(graph, update)


def _check_readers(graph: Graph, update: Update) -> None:
    """Refuse results that depend on a new value which autograd takes for the argument itself."""
    new = [n.id for n in graph if n.op == "reindex" and dict(n.attributes).get("argument") == update.input]
    if set(graph.outputs) & active_nodes(graph, new) - set(new):
        name = graph[graph.inputs[update.input]].name
        message = f"{name!r} is read after in-place {update.operation}, and its gradient is wanted"
        _fail(update, message, "read it before, or use x.detach()")


def check_kept(graph: Graph, updates: Sequence[Update], wanted: Sequence[int], kept: Sequence[Source]) -> None:
    """Refuse gradients that need the old value of a changed input whose own gradient is wanted.

    Raises:
        InPlaceGradient: there is one.
    """
    held = {source.index for source in kept if isinstance(source, ForwardInput)}
    for update in updates:
        if update.input in held and update.input in wanted:
            name = graph[graph.inputs[update.input]].name
            message = f"a gradient needs the value that {name!r} has before in-place {update.operation}"
            _fail(update, message, "compute with a copy: x.clone()")


def _fail(update: Update, message: str, hint: str) -> NoReturn:
    raise InPlaceGradient(message, update.span, expected="a change in place that autograd does not record", hint=hint)
