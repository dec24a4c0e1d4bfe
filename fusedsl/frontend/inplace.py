# SPDX-License-Identifier: Apache-2.0
"""In-place operations: every name that holds the value sees the new one; what that could not model is refused."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import torch

from fusedsl.frontend.callables import TensorValue
from fusedsl.frontend.callables.values import broadcast, cast
from fusedsl.frontend.errors import InPlaceOnArgument, InPlaceOnView, InPlaceResult
from fusedsl.frontend.scope import Frame
from fusedsl.frontend.tracer import Tracer
from fusedsl.frontend.values import describe
from fusedsl.graph.types import dtype_name


def update(
    tr: Tracer, frame: Frame, node: ast.AST, operation: str, target: TensorValue, compute: Callable[[], Any]
) -> TensorValue:
    """Give ``target`` the value that ``compute`` returns (the out-of-place operation), as torch's in-place form would.

    Args:
        operation: as the user wrote it, quoted, for messages.
    """
    storage = tr.aliases.storage(target)
    if storage.owner is not None:
        what = f"the argument '{storage.owner}'" if _is_argument(tr, storage.owner) else f"'{storage.owner}'"
        tr.fail(
            InPlaceOnArgument, frame, node, operation=operation, what=what, hint="x = x + 1, which makes a new tensor"
        )
    if tr.aliases.others(target):
        hint = "make a copy first: x.clone()"
        tr.fail(InPlaceOnView, frame, node, operation=operation, hint=hint)
    if _is_expanded(tr, target):
        tr.fail(InPlaceOnView, frame, node, operation=operation, hint="make a copy first: x.clone()")
    if not tr.recording and not _is_unrecorded(tr, target):
        # torch would keep the gradient of the value before.
        found, wanted = "made inside torch.no_grad()", "made outside of it"
        hint = "x = x + 1, which makes a new tensor"
        tr.fail(InPlaceResult, frame, node, operation=operation, found=found, target=wanted, hint=hint)
    result = compute()
    if not isinstance(result, TensorValue):
        tr.fail(InPlaceResult, frame, node, operation=operation, found=describe(result), target="a tensor", hint=None)
    _check(tr, frame, node, operation, target, result)
    tr.at(frame, node)
    result = tr.unrecorded(broadcast(cast(result, target.dtype, explicit=True), target.shape))
    tr.aliases.replace(target, result.id)
    return target


def _check(tr: Tracer, frame: Frame, node: ast.AST, operation: str, target: TensorValue, result: TensorValue) -> None:
    if result.dtype is not target.dtype and not torch.can_cast(result.dtype, target.dtype):
        found, wanted = dtype_name(result.dtype), dtype_name(target.dtype)
        hint = "x = x + y, which makes a new tensor"
        tr.fail(InPlaceResult, frame, node, operation=operation, found=found, target=wanted, hint=hint)
    sizes, wanted_sizes = result.hint_shape, target.hint_shape
    missing = len(wanted_sizes) - len(sizes)
    fits = missing >= 0 and all(a in (1, b) for a, b in zip(sizes, wanted_sizes[missing:], strict=True))
    if not fits:
        found, wanted = f"of shape {sizes}", f"of shape {wanted_sizes}"
        hint = "x = x + y, which makes a new tensor"
        tr.fail(InPlaceResult, frame, node, operation=operation, found=found, target=wanted, hint=hint)


def _is_argument(tr: Tracer, name: str) -> bool:
    for node_id in tr.captures.examples:
        if tr.builder.nodes[node_id].name == name:
            index = tr.captures.input_index(node_id)
            return index is not None and tr.captures.tensors[index].root == "argument"
    return False


def _is_unrecorded(tr: Tracer, target: TensorValue) -> bool:
    """Whether the value carries no gradient for sure."""
    node = tr.builder.nodes[target.id]
    return not target.dtype.is_floating_point or node.op == "full" or bool(dict(node.attributes).get("detached"))


def _is_expanded(tr: Tracer, target: TensorValue) -> bool:
    """Whether several elements of the view are one element of memory."""
    node = tr.builder.nodes[target.id]
    if node.op != "reindex":
        return False
    source = tr.builder.tensor(node.inputs[0]).shape
    dims = node.attribute("dims")
    return any(e != 1 and (d is None or source[d] == 1) for e, d in zip(target.shape, dims, strict=True))
