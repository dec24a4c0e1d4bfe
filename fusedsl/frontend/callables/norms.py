# SPDX-License-Identifier: Apache-2.0
"""Vector norms, and what is built from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F

from fusedsl.frontend.callables.compose import dtype_argument, many_dims, one_dim, static, tensor, widen, widen_all
from fusedsl.frontend.callables.errors import OpError
from fusedsl.frontend.callables.logic import clamped
from fusedsl.frontend.callables.reductions import reduce, refuse_empty
from fusedsl.frontend.callables.table import everywhere, handles
from fusedsl.frontend.callables.values import TensorValue, broadcast, broadcast_shape, cast, pointwise


def _norm(value: TensorValue, order: Any, dims: Sequence[int], keepdim: bool) -> TensorValue:
    """The ``order``-norm of ``value`` over ``dims`` in its own dtype."""
    if not dims:
        value = pointwise("abs", value)
        return value if order != 0 else cast(pointwise("ne", value, 0), value.dtype)
    if order == 2:
        return pointwise("sqrt", reduce("sum", value * value, dims, keepdim))
    if order == 0:
        return reduce("sum", cast(pointwise("ne", value, 0), value.dtype), dims, keepdim)
    size = pointwise("abs", value)
    if order == 1:
        return reduce("sum", size, dims, keepdim)
    if math.isinf(order):
        op = "amax" if order > 0 else "amin"
        refuse_empty(value, dims, "norm")
        return reduce(op, size, dims, keepdim)
    return pointwise("pow", reduce("sum", pointwise("pow", size, order), dims, keepdim), 1 / order)


def _vector_norm(input: Any, order: Any, dim: Any, keepdim: Any, dtype: Any) -> TensorValue:
    value = tensor(input, "norm")
    wanted = dtype_argument(dtype) or value.dtype
    if not wanted.is_floating_point or not value.dtype.is_floating_point:
        raise OpError("a norm takes a floating tensor", hint="convert it with .float() first")
    power = static(order, "ord")
    if not isinstance(power, (int, float)):
        raise OpError(f"ord={power!r} is not a number")
    wide = widen(cast(value, wanted), wanted)
    return cast(_norm(wide, float(power), many_dims(dim, value.rank), static(keepdim, "keepdim")), wanted)


@handles("linalg.vector_norm")
def vector_norm(
    builder: Any, x: Any, ord: Any = 2, dim: Any = None, keepdim: Any = False, *, dtype: Any = None
) -> TensorValue:
    return _vector_norm(x, ord, dim, keepdim, dtype)


@handles(*everywhere("norm"))
def norm(builder: Any, input: Any, p: Any = "fro", dim: Any = None, keepdim: Any = False, dtype: Any = None) -> Any:
    order = static(p, "p")
    if order == "nuc":
        return NotImplemented
    return _vector_norm(input, 2 if order in ("fro", None) else order, dim, keepdim, dtype)


@handles("linalg.norm")
def linalg_norm(
    builder: Any, input: Any, ord: Any = None, dim: Any = None, keepdim: Any = False, *, dtype: Any = None
) -> Any:
    value, order = tensor(input, "norm"), static(ord, "ord")
    axes = static(dim, "dim")
    number = value.rank if axes is None else len(axes) if isinstance(axes, (tuple, list)) else 1
    if order is not None and order != "fro" and number != 1:
        return NotImplemented  # a matrix norm
    if order == "fro" and number != 2:
        raise OpError("ord='fro' takes two dims")
    return _vector_norm(value, 2 if order in (None, "fro") else order, dim, keepdim, dtype)


@handles("linalg.matrix_norm")
def matrix_norm(
    builder: Any, input: Any, ord: Any = "fro", dim: Any = (-2, -1), keepdim: Any = False, *, dtype: Any = None
) -> Any:
    return _vector_norm(input, 2, dim, keepdim, dtype) if static(ord, "ord") == "fro" else NotImplemented


@handles("F.normalize")
def normalize(builder: Any, input: Any, p: Any = 2.0, dim: Any = 1, eps: Any = 1e-12, out: Any = None) -> TensorValue:
    value = tensor(input, "normalize")
    if isinstance(dim, int):
        one_dim(dim, value.rank)
    length = _vector_norm(value, p, dim, True, None)
    wide = widen(value, value.dtype)
    return cast(wide / clamped(widen(length, length.dtype), eps, None, wide.dtype), value.dtype)


@handles("F.cosine_similarity", "torch.cosine_similarity")
def cosine_similarity(builder: Any, x1: Any, x2: Any, dim: Any = 1, eps: Any = 1e-8) -> TensorValue:
    a, b = tensor(x1, "cosine_similarity"), tensor(x2, "cosine_similarity")
    dtype, (a, b) = widen_all(F.cosine_similarity, "cosine_similarity", a, b)
    if not dtype.is_floating_point:
        raise OpError("cosine_similarity takes floating tensors", hint="convert them with .float() first")
    shape = broadcast_shape(builder, [a.shape, b.shape])
    a, b = broadcast(a, shape), broadcast(b, shape)
    dims = many_dims(one_dim(dim, a.rank), a.rank)
    product = reduce("sum", a * b, dims)
    for value in (a, b):
        product = product / clamped(_norm(value, 2, dims, False), eps, None, value.dtype)
    return cast(product, dtype)


@handles("F.pairwise_distance", "torch.pairwise_distance")
def pairwise_distance(
    builder: Any, x1: Any, x2: Any, p: Any = 2.0, eps: Any = 1e-6, keepdim: Any = False
) -> TensorValue:
    dtype, (a, b) = widen_all(F.pairwise_distance, "pairwise_distance", x1, x2)
    difference = a - b + eps
    order = float(static(p, "p"))
    return cast(_norm(difference, order, (difference.rank - 1,), static(keepdim, "keepdim")), dtype)
