# SPDX-License-Identifier: Apache-2.0
"""softmax and its kin: a maximum, a sum of exponentials, arithmetic; computed in at least float32 and rounded once."""

from __future__ import annotations

from typing import Any

from fusedsl.frontend.callables.compose import dtype_argument, many_dims, one_dim, packed, tensor, widen
from fusedsl.frontend.callables.errors import OpError
from fusedsl.frontend.callables.reductions import reduce
from fusedsl.frontend.callables.table import handles
from fusedsl.frontend.callables.values import TensorValue, cast, pointwise
from fusedsl.graph.types import extent_hint


def _shifted(input: Any, dim: Any, dtype: Any, name: str) -> tuple[TensorValue, TensorValue, tuple[int, ...]]:
    """The input cast to the result dtype, the wide input minus its maximum, and the dims."""
    value = tensor(input, name)
    wanted = dtype_argument(dtype)
    if wanted is not None:
        value = cast(value, wanted)
    if not value.dtype.is_floating_point:
        raise OpError(f"{name} takes a floating tensor", hint="pass dtype=torch.float32")
    if dim is None:
        dim = 0 if value.rank in (0, 1, 3) else 1
    dims = many_dims(one_dim(dim, value.rank), value.rank)
    wide = widen(value, value.dtype)
    if any(extent_hint(wide.shape[d]) == 0 for d in dims):
        return value, wide, dims
    return value, wide - reduce("amax", wide, dims, keepdim=True), dims


def _softmax(input: Any, dim: Any, dtype: Any, name: str) -> TensorValue:
    value, shifted, dims = _shifted(input, dim, dtype, name)
    exponential = pointwise("exp", shifted)
    return packed(cast(exponential / reduce("sum", exponential, dims, keepdim=True), value.dtype))


@handles("torch.softmax", "Tensor.softmax", "special.softmax")
def softmax(builder: Any, input: Any, dim: Any, dtype: Any = None) -> TensorValue:
    return _softmax(input, dim, dtype, "softmax")


@handles("F.softmax")
def functional_softmax(
    builder: Any, input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None
) -> TensorValue:
    return _softmax(input, dim, dtype, "softmax")


@handles("F.softmin")
def softmin(builder: Any, input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None) -> TensorValue:
    return _softmax(-tensor(input, "softmin"), dim, dtype, "softmin")


def _log_softmax(input: Any, dim: Any, dtype: Any) -> TensorValue:
    value, shifted, dims = _shifted(input, dim, dtype, "log_softmax")
    total = reduce("sum", pointwise("exp", shifted), dims, keepdim=True)
    return packed(cast(shifted - pointwise("log", total), value.dtype))


@handles("torch.log_softmax", "Tensor.log_softmax", "special.log_softmax")
def log_softmax(builder: Any, input: Any, dim: Any, dtype: Any = None) -> TensorValue:
    return _log_softmax(input, dim, dtype)


@handles("F.log_softmax")
def functional_log_softmax(
    builder: Any, input: Any, dim: Any = None, _stacklevel: int = 3, dtype: Any = None
) -> TensorValue:
    return _log_softmax(input, dim, dtype)
