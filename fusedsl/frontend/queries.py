# SPDX-License-Identifier: Apache-2.0
"""Questions about tensors that are answered while tracing: sizes, ranks, dtypes."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

import torch

from fusedsl.frontend.attributes import shape_of
from fusedsl.frontend.callables import ScalarValue, TensorValue
from fusedsl.frontend.callables.values import host
from fusedsl.frontend.errors import StaticFailure
from fusedsl.frontend.scope import Frame
from fusedsl.frontend.tracer import Tracer


def _size(tr: Tracer, frame: Frame, node: ast.AST, value: TensorValue, dim: Any = None) -> Any:
    shape = shape_of(tr, value)
    if dim is None:
        return shape
    return tr.run_static(frame, node, shape.__getitem__, tr.static(dim))


def _numel(tr: Tracer, frame: Frame, node: ast.AST, value: TensorValue) -> Any:
    total: Any = 1
    for extent in shape_of(tr, value):
        total = host("mul", total, extent)
    return total


def length(tr: Tracer, frame: Frame, node: ast.AST, value: TensorValue) -> Any:
    """``len(tensor)``."""
    if value.rank == 0:
        tr.fail(StaticFailure, frame, node, kind="TypeError", reason="len() of a 0-d tensor")
    return shape_of(tr, value)[0]


def _of_value(answer: Callable[[TensorValue], Any]) -> Callable[..., Any]:
    def query(tr: Tracer, frame: Frame, node: ast.AST, value: TensorValue) -> Any:
        return answer(value)

    return query


def _get_device(tr: Tracer, frame: Frame, node: ast.AST, value: TensorValue) -> int:
    return -1 if tr.device.index is None else tr.device.index


TENSOR_QUERIES: dict[str, Callable[..., Any]] = {
    "size": _size,
    "dim": _of_value(lambda value: value.rank),
    "ndimension": _of_value(lambda value: value.rank),
    "numel": _numel,
    "nelement": _numel,
    "__len__": length,
    "element_size": _of_value(lambda value: value.dtype.itemsize),
    "is_floating_point": _of_value(lambda value: value.dtype.is_floating_point),
    "is_complex": _of_value(lambda value: False),
    "is_signed": _of_value(lambda value: value.dtype.is_signed),
    "get_device": _get_device,
}


def _is_tensor(tr: Tracer, frame: Frame, node: ast.AST, value: Any) -> bool:
    return isinstance(value, TensorValue)


def _broadcast_shapes(tr: Tracer, frame: Frame, node: ast.AST, *shapes: Any) -> Any:
    plain = [tuple(tr.static(x) for x in tr.static(shape)) for shape in shapes]
    return tuple(tr.run_static(frame, node, torch.broadcast_shapes, *plain))


def _make_size(tr: Tracer, frame: Frame, node: ast.AST, items: Any = ()) -> tuple[Any, ...]:
    return tuple(tr.static(items))


def _static(function: Callable[..., Any]) -> Callable[..., Any]:
    def query(tr: Tracer, frame: Frame, node: ast.AST, *args: Any) -> Any:
        return tr.run_static(frame, node, function, *(_stand_in(x) for x in args))

    return query


def _stand_in(value: Any) -> Any:
    """A small tensor, or a number, with the dtype and rank class of a value."""
    if isinstance(value, TensorValue):
        return torch.empty((1,) * min(value.rank, 1), dtype=value.dtype, device="meta")
    return value.hint if isinstance(value, ScalarValue) else value


QUERIES: dict[Any, Callable[..., Any]] = {
    torch.is_tensor: _is_tensor,
    torch.is_floating_point: TENSOR_QUERIES["is_floating_point"],
    torch.is_complex: TENSOR_QUERIES["is_complex"],
    torch.numel: _numel,
    torch.broadcast_shapes: _broadcast_shapes,
    torch.promote_types: _static(torch.promote_types),
    torch.result_type: _static(torch.result_type),
    torch.can_cast: _static(torch.can_cast),
    torch.Size: _make_size,
}
