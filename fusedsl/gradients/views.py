# SPDX-License-Identifier: Apache-2.0
"""Opaque calls that only change the shape: free to repeat, and differentiated without running them again."""

from __future__ import annotations

import torch

from fusedsl.gradients.expression import Expression, extent
from fusedsl.graph.graph import Node
from fusedsl.graph.opaque import CallTemplate, Hole, Pack
from fusedsl.graph.types import TensorType

_RESHAPES = frozenset(
    f"{home}.{name}"
    for home in ("torch", "torch.Tensor")
    for name in ("flatten", "unflatten", "reshape", "view", "ravel", "view_as", "reshape_as")
)


def is_reshape(node: Node) -> bool:
    """Whether an opaque node gives the elements of its first operand in the same order and another shape."""
    if node.op != "opaque" or node.attribute("function") not in _RESHAPES:
        return False
    call = node.attribute("call")
    retyped = any(isinstance(x, torch.dtype) for x in (*call.args, *(value for _, value in call.kwargs)))
    return bool(call.args) and call.args[0] == Hole(0) and node.is_tensor and not retyped


def reshaped(gradient: Expression, source: Expression) -> Expression:
    """The gradient of a reshape: ``gradient`` in the shape of ``source``, of which only the shape is read."""
    sizes = [extent(source, d) for d in range(len(source.shape))]
    known = [s for s in sizes if isinstance(s, Expression)]
    holes = iter(range(1, len(known) + 1))
    shape = Pack("tuple", tuple(Hole(next(holes)) if isinstance(s, Expression) else s for s in sizes))
    call = CallTemplate((Hole(0), shape), ())
    type_ = TensorType(gradient.dtype, source.shape)
    inputs = (gradient.id, *(s.id for s in known))
    node = source.builder.add("opaque", inputs, type_, function="torch.reshape", call=call, results=1)
    return Expression(source.builder, node)
