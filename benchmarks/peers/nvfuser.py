# SPDX-License-Identifier: Apache-2.0
"""nvFuser through its direct Python bindings: one fusion definition an operation, arithmetic in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor

from benchmarks.operations import Operation

# A recipe takes the fusion definition, the arguments as float32 values and their torch tensors, and gives the result.
Recipe = Callable[[Any, list[Any], tuple[Tensor, ...]], Any]


def _row(fd: Any, vector: Any, like: Any) -> Any:
    """A vector over the columns, broadcast to the matrix ``like``."""
    return fd.ops.broadcast_in_dim(vector, shape=like.shape(), broadcast_dims=[1])


def _rmsnorm(fd: Any, values: list[Any], arguments: tuple[Tensor, ...]) -> Any:
    x, weight = values
    squares = fd.ops.sum(fd.ops.mul(x, x), dims=[1], keepdim=True)
    mean = fd.ops.mul(squares, fd.define_scalar(1.0 / arguments[0].shape[1]))
    scale = fd.ops.rsqrt(fd.ops.add(mean, fd.define_scalar(1e-6)))
    return fd.ops.mul(fd.ops.mul(x, scale), _row(fd, weight, x))


def _layernorm(fd: Any, values: list[Any], arguments: tuple[Tensor, ...]) -> Any:
    x, weight, bias = values
    variance, mean = fd.ops.var_mean(x, dims=[1], correction=0, keepdim=True)
    scale = fd.ops.rsqrt(fd.ops.add(variance, fd.define_scalar(1e-5)))
    normalised = fd.ops.mul(fd.ops.sub(x, mean), scale)
    return fd.ops.add(fd.ops.mul(normalised, _row(fd, weight, x)), _row(fd, bias, x))


def _softmax(fd: Any, values: list[Any], arguments: tuple[Tensor, ...]) -> Any:
    (x,) = values
    exponential = fd.ops.exp(fd.ops.sub(x, fd.ops.max(x, dims=[1], keepdim=True)))
    total = fd.ops.sum(exponential, dims=[1], keepdim=True)
    return fd.ops.mul(exponential, fd.ops.reciprocal(total))


def _gelu_bias(fd: Any, values: list[Any], arguments: tuple[Tensor, ...]) -> Any:
    x, bias = values
    z = fd.ops.add(x, _row(fd, bias, x))
    error = fd.ops.erf(fd.ops.mul(z, fd.define_scalar(2**-0.5)))
    half = fd.ops.mul(z, fd.define_scalar(0.5))
    return fd.ops.mul(half, fd.ops.add(error, fd.define_scalar(1.0)))


def _silu_mul(fd: Any, values: list[Any], arguments: tuple[Tensor, ...]) -> Any:
    gate, up = values
    return fd.ops.mul(fd.ops.mul(gate, fd.ops.sigmoid(gate)), up)


def _colsum(fd: Any, values: list[Any], arguments: tuple[Tensor, ...]) -> Any:
    return fd.ops.sum(values[0], dims=[0])


def _rowsum(fd: Any, values: list[Any], arguments: tuple[Tensor, ...]) -> Any:
    return fd.ops.sum(values[0], dims=[1])


RECIPES: dict[str, Recipe] = {
    "rmsnorm": _rmsnorm,
    "layernorm": _layernorm,
    "softmax": _softmax,
    "gelu_bias": _gelu_bias,
    "silu_mul": _silu_mul,
    "colsum": _colsum,
    "rowsum": _rowsum,
}


def prepare(operation: Operation, arguments: tuple[Tensor, ...]) -> Callable[[], Tensor] | None:
    """A fusion definition of the operation with symbolic sizes."""
    recipe = RECIPES.get(operation.name)
    if recipe is None:
        return None
    from nvfuser_direct import DataType, FusionDefinition

    dtypes = {
        torch.float16: DataType.Half,
        torch.bfloat16: DataType.BFloat16,
        torch.float32: DataType.Float,
        torch.float64: DataType.Double,
    }
    with FusionDefinition() as fd:
        inputs = [
            fd.define_tensor(shape=[-1] * a.dim(), contiguity=[True] * a.dim(), dtype=dtypes[a.dtype])
            for a in arguments
        ]
        values = [fd.ops.cast(value, dtype=DataType.Float) for value in inputs]
        result = recipe(fd, values, arguments)
        fd.add_output(fd.ops.cast(result, dtype=dtypes[arguments[0].dtype]))
    operands = list(arguments)
    return lambda: cast(Tensor, fd.execute(operands)[0])
