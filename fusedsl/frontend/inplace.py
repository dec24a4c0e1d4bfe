# SPDX-License-Identifier: Apache-2.0
"""In-place operations: every name that holds the value sees the new one; what that could not model is refused.

An argument or captured tensor that is changed is written when the program has run (:class:`Update`). Inside
``torch.no_grad()``, and through ``detach()``, its new value is a ``reindex`` node with the attributes ``detached=True``
and ``argument=index``: autograd would take it for the argument itself, so what reads it must not need its gradient
(checked where the call is recorded).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Any

import torch

from fusedsl.frontend.aliasing import View
from fusedsl.frontend.callables import TensorValue
from fusedsl.frontend.callables.updates import Updating
from fusedsl.frontend.callables.values import broadcast, cast, pointwise
from fusedsl.frontend.errors import InPlaceOnArgument, InPlaceOnView, InPlaceResult
from fusedsl.frontend.scope import Frame
from fusedsl.frontend.tracer import Changed, Tracer
from fusedsl.frontend.values import describe
from fusedsl.graph.types import Extent, TensorType, dtype_name

_COPY = "make a copy first: x.clone()"
_NEW = "x = x + y, which makes a new tensor"


def update(
    tr: Tracer, frame: Frame, node: ast.AST, operation: str, target: TensorValue, compute: Callable[[], Any]
) -> TensorValue:
    """Give ``target`` the value that ``compute`` returns (the out-of-place operation), as torch's in-place form would.

    Args:
        tr: the trace.
        frame: of the user's function.
        node: of the operation.
        operation: as the user wrote it, quoted, for messages.
        target: what is changed: a computed value, an argument, or a view of one that has all of its elements.
        compute: the operation out of place.

    Raises:
        InPlaceOnArgument: the target is a view of an argument that has only a part of it.
        InPlaceOnView: other live values share memory with the target in a way that the graph cannot follow.
        InPlaceResult: the result does not fit into the target.
    """
    argument = tr.aliases.storage(target).argument
    if argument is None:
        return _update_computed(tr, frame, node, operation, target, compute)
    base = tr.captures.handles[argument]
    tr.aliases.storage(base)
    view = tr.aliases.view(target.id, base.id)
    if view is None or not _has_all(base.shape, view, target.shape):
        path = tr.captures.tensors[argument]
        what = f"the argument '{path}'" if path.root == "argument" else f"'{path}'"
        tr.fail(InPlaceOnArgument, frame, node, operation=operation, what=what, hint=_COPY)
    others = _views(tr, frame, node, operation, target, base.id)
    unrecorded = not tr.recording or view.detached
    made = _result(tr, frame, node, operation, target, compute)
    made = view.undo(made, base.shape)
    if _is_structure(tr, made) or tr.builder.nodes[made.id].op == "reindex":
        made = pointwise("clone", made)
    if unrecorded:
        made = _unrecorded(made, argument)
    tr.builder.rename(made.id, f"{tr.builder.nodes[tr.captures.node(argument)].name}_new")
    tr.changed(argument, Changed(operation, not unrecorded, frame.source.span(node)))
    _replace(tr, made, [*others, (target, view)])
    return target


def finish(tr: Tracer, frame: Frame, node: ast.AST, operation: str, made: Updating) -> Any:
    """The result of an operation that changes some of its operands as well, which are given their new values."""
    for target, value in made.updates:
        update(tr, frame, node, operation, target, _constant(value))
    return made.result


def _constant(value: TensorValue) -> Callable[[], TensorValue]:
    return lambda: value


def _update_computed(
    tr: Tracer, frame: Frame, node: ast.AST, operation: str, target: TensorValue, compute: Callable[[], Any]
) -> TensorValue:
    """``update`` of a value that the function made."""
    root = tr.aliases.root(target.id)
    view = tr.aliases.view(target.id, root)
    shape = tr.builder.tensor(root).shape
    if view is not None and not _has_all(shape, view, target.shape):
        tr.fail(InPlaceOnView, frame, node, operation=operation, hint=_COPY)
    if not tr.recording and not _is_unrecorded(tr, target):
        # torch would keep the gradient of the value before.
        found, wanted = "made inside torch.no_grad()", "made outside of it"
        tr.fail(InPlaceResult, frame, node, operation=operation, found=found, target=wanted, hint=_NEW)
    others = _views(tr, frame, node, operation, target, root)
    if others and (view is None or view.detached or any(other.detached for _, other in others)):
        tr.fail(InPlaceOnView, frame, node, operation=operation, hint=_COPY)
    made = tr.unrecorded(_result(tr, frame, node, operation, target, compute))
    if not others or view is None:
        tr.aliases.replace(target, made.id)
    else:
        _replace(tr, view.undo(made, shape), [*others, (target, view)])
    return target


def _views(
    tr: Tracer, frame: Frame, node: ast.AST, operation: str, target: TensorValue, base: int
) -> list[tuple[TensorValue, View]]:
    """How the other live values in the target's memory read the node ``base``."""
    found = []
    for handle in tr.aliases.others(target):
        view = tr.aliases.view(handle.id, base)
        if view is None:
            tr.fail(InPlaceOnView, frame, node, operation=operation, hint=_COPY)
        found.append((handle, view))
    return found


def _replace(tr: Tracer, base: TensorValue, views: Iterable[tuple[TensorValue, View]]) -> None:
    """Let handles that share memory see what is in it now."""
    for handle, view in views:
        tr.aliases.replace(handle, view.of(base, handle.shape).id)


def _result(
    tr: Tracer, frame: Frame, node: ast.AST, operation: str, target: TensorValue, compute: Callable[[], Any]
) -> TensorValue:
    """What ``compute`` returns, in the dtype and shape of the target."""
    result = compute()
    if not isinstance(result, TensorValue):
        tr.fail(InPlaceResult, frame, node, operation=operation, found=describe(result), target="a tensor", hint=None)
    _check(tr, frame, node, operation, target, result)
    tr.at(frame, node)
    tr.builder.span = frame.source.span(node)
    return broadcast(cast(result, target.dtype, explicit=True), target.shape)


def _check(tr: Tracer, frame: Frame, node: ast.AST, operation: str, target: TensorValue, result: TensorValue) -> None:
    if result.dtype is not target.dtype and not torch.can_cast(result.dtype, target.dtype):
        found, wanted = dtype_name(result.dtype), dtype_name(target.dtype)
        tr.fail(InPlaceResult, frame, node, operation=operation, found=found, target=wanted, hint=_NEW)
    sizes, wanted_sizes = result.hint_shape, target.hint_shape
    missing = len(wanted_sizes) - len(sizes)
    fits = missing >= 0 and all(a in (1, b) for a, b in zip(sizes, wanted_sizes[missing:], strict=True))
    if not fits:
        found, wanted = f"of shape {sizes}", f"of shape {wanted_sizes}"
        tr.fail(InPlaceResult, frame, node, operation=operation, found=found, target=wanted, hint=_NEW)


def _unrecorded(value: TensorValue, argument: int) -> TensorValue:
    """The new value of an argument, which autograd does not learn of."""
    if not value.dtype.is_floating_point:
        return value
    dims, type_ = tuple(range(value.rank)), TensorType(value.dtype, value.shape)
    node = value.builder.add("reindex", (value.id,), type_, dims=dims, detached=True, argument=argument)
    return TensorValue(value.builder, node)


def _is_structure(tr: Tracer, value: TensorValue) -> bool:
    """Whether a value may lie in memory that is not its own: an argument's, or an eager result's."""
    return tr.builder.nodes[tr.aliases.root(value.id)].op in ("input", "opaque", "item")


def _is_unrecorded(tr: Tracer, target: TensorValue) -> bool:
    """Whether the value carries no gradient for sure."""
    node = tr.builder.nodes[target.id]
    return not target.dtype.is_floating_point or node.op == "full" or bool(dict(node.attributes).get("detached"))


def _has_all(base: tuple[Extent, ...], view: View, shape: tuple[Extent, ...]) -> bool:
    """Whether a view has every element of what it views once."""
    return all(e == 1 or (d is not None and base[d] != 1) for e, d in zip(shape, view.dims, strict=True))
