# SPDX-License-Identifier: Apache-2.0
"""nvFuser through its direct Python bindings: one fusion definition an operation, arithmetic in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import attrs
import torch
from torch import Tensor

from benchmarks.operations import Operation, Results


@attrs.frozen
class Definition:
    """A fusion under construction.

    Attributes:
        fd: nvFuser's fusion definition.
        inputs: the operands as they are.
        values: the operands as float32 values (integers as they are).
        operands: their torch tensors.
    """

    fd: Any
    inputs: list[Any]
    values: list[Any]
    operands: tuple[Tensor, ...]

    @property
    def columns(self) -> int:
        """The last extent of the first operand."""
        return self.operands[0].shape[-1]

    def number(self, value: float) -> Any:
        """A constant."""
        return self.fd.define_scalar(value)

    def along(self, vector: Any, like: Any, dims: int) -> Any:
        """A vector over the last of ``dims`` dims, broadcast to ``like``."""
        return self.fd.ops.broadcast_in_dim(vector, shape=like.shape(), broadcast_dims=[dims - 1])

    def row_mean(self, value: Any) -> Any:
        """The mean of every row, kept as a column."""
        total = self.fd.ops.sum(value, dims=[1], keepdim=True)
        return self.fd.ops.mul(total, self.number(1.0 / self.columns))


# A recipe gives the outputs as float32 values; an output that replaces an operand it adds itself.
Recipe = Callable[[Definition], Sequence[Any]]


def _rmsnorm(d: Definition) -> Sequence[Any]:
    ops, (x, weight) = d.fd.ops, d.values
    scale = ops.rsqrt(ops.add(d.row_mean(ops.mul(x, x)), d.number(1e-6)))
    return [ops.mul(ops.mul(x, scale), d.along(weight, x, 2))]


def _layernorm(d: Definition) -> Sequence[Any]:
    ops, (x, weight, bias) = d.fd.ops, d.values
    variance, mean = ops.var_mean(x, dims=[1], correction=0, keepdim=True)
    scale = ops.rsqrt(ops.add(variance, d.number(1e-5)))
    normalised = ops.mul(ops.sub(x, mean), scale)
    return [ops.add(ops.mul(normalised, d.along(weight, x, 2)), d.along(bias, x, 2))]


def _softmax(d: Definition) -> Sequence[Any]:
    ops, (x,) = d.fd.ops, d.values
    exponential = ops.exp(ops.sub(x, ops.max(x, dims=[1], keepdim=True)))
    total = ops.sum(exponential, dims=[1], keepdim=True)
    return [ops.mul(exponential, ops.reciprocal(total))]


def _cross_entropy(d: Definition) -> Sequence[Any]:
    ops, (x, target) = d.fd.ops, d.values
    largest = ops.max(x, dims=[1], keepdim=True)
    total = ops.sum(ops.exp(ops.sub(x, largest)), dims=[1], keepdim=True)
    logit = ops.take_along_axis(x, ops.broadcast(target, [False, True]), 1)
    return [ops.squeeze(ops.sub(ops.add(ops.log(total), largest), logit), [1])]


def _gelu_bias(d: Definition) -> Sequence[Any]:
    ops, (x, bias) = d.fd.ops, d.values
    z = ops.add(x, d.along(bias, x, 2))
    error = ops.erf(ops.mul(z, d.number(2**-0.5)))
    half = ops.mul(z, d.number(0.5))
    return [ops.mul(half, ops.add(error, d.number(1.0)))]


def _silu_mul(d: Definition) -> Sequence[Any]:
    ops, (gate, up) = d.fd.ops, d.values
    return [ops.mul(ops.mul(gate, ops.sigmoid(gate)), up)]


def _colsum(d: Definition) -> Sequence[Any]:
    return [d.fd.ops.sum(d.values[0], dims=[0])]


def _rowsum(d: Definition) -> Sequence[Any]:
    return [d.fd.ops.sum(d.values[0], dims=[1])]


def _rmsnorm_bwd(d: Definition) -> Sequence[Any]:
    ops, (x, weight, incoming, rstd) = d.fd.ops, d.values
    normalised = ops.mul(x, rstd)
    scaled = ops.mul(incoming, d.along(weight, x, 2))
    projected = ops.mul(normalised, d.row_mean(ops.mul(scaled, normalised)))
    return [ops.mul(rstd, ops.sub(scaled, projected)), ops.sum(ops.mul(incoming, normalised), dims=[0])]


def _layernorm_bwd(d: Definition) -> Sequence[Any]:
    ops, (x, weight, incoming, mean, rstd) = d.fd.ops, d.values
    normalised = ops.mul(ops.sub(x, mean), rstd)
    scaled = ops.mul(incoming, d.along(weight, x, 2))
    projected = ops.mul(normalised, d.row_mean(ops.mul(scaled, normalised)))
    centred = ops.sub(ops.sub(scaled, d.row_mean(scaled)), projected)
    sums = [ops.sum(ops.mul(incoming, normalised), dims=[0]), ops.sum(incoming, dims=[0])]
    return [ops.mul(rstd, centred), *sums]


def _softmax_bwd(d: Definition) -> Sequence[Any]:
    ops, (y, incoming) = d.fd.ops, d.values
    product = ops.sum(ops.mul(y, incoming), dims=[1], keepdim=True)
    return [ops.mul(y, ops.sub(incoming, product))]


def _batchnorm(d: Definition) -> Sequence[Any]:
    ops, (x, weight, bias, running_mean, running_var) = d.fd.ops, d.values
    variance, mean = ops.var_mean(x, dims=[0, 1, 2], correction=0, keepdim=False)
    scale = ops.mul(weight, ops.rsqrt(ops.add(variance, d.number(1e-5))))
    result = ops.mul(ops.sub(x, d.along(mean, x, 4)), d.along(scale, x, 4))
    count = d.operands[0].numel() // d.columns
    unbiased = ops.mul(variance, d.number(count / (count - 1)))
    for running, new, place in ((running_mean, mean, 3), (running_var, unbiased, 4)):
        updated = ops.add(ops.mul(running, d.number(0.9)), ops.mul(new, d.number(0.1)))
        d.fd.add_output(updated, d.inputs[place])
    return [ops.add(result, d.along(bias, x, 4))]


def _batchnorm_bwd(d: Definition) -> Sequence[Any]:
    ops, (x, weight, incoming, mean, rstd) = d.fd.ops, d.values
    normalised = ops.mul(ops.sub(x, d.along(mean, x, 4)), d.along(rstd, x, 4))
    total = ops.sum(incoming, dims=[0, 1, 2])
    product = ops.sum(ops.mul(incoming, normalised), dims=[0, 1, 2])
    share = d.number(d.columns / d.operands[0].numel())
    projected = ops.mul(normalised, d.along(ops.mul(product, share), x, 4))
    centred = ops.sub(ops.sub(incoming, d.along(ops.mul(total, share), x, 4)), projected)
    return [ops.mul(centred, d.along(ops.mul(weight, rstd), x, 4)), product, total]


RECIPES: dict[str, Recipe] = {
    "rmsnorm": _rmsnorm,
    "layernorm": _layernorm,
    "softmax": _softmax,
    "cross_entropy": _cross_entropy,
    "gelu_bias": _gelu_bias,
    "silu_mul": _silu_mul,
    "colsum": _colsum,
    "rowsum": _rowsum,
    "rmsnorm_bwd": _rmsnorm_bwd,
    "layernorm_bwd": _layernorm_bwd,
    "softmax_bwd": _softmax_bwd,
    "batchnorm": _batchnorm,
    "batchnorm_bwd": _batchnorm_bwd,
}


def _rows_last(image: Tensor) -> Tensor:
    """A channels-last image with its channels as the last dim: packed."""
    return image.movedim(1, -1)


def operands(name: str, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """What a recipe takes: the arguments, for gradients with the values a forward pass saves."""
    if name == "rmsnorm_bwd":
        x, weight, incoming = arguments
        return x, weight, incoming, (x.float().square().mean(1, keepdim=True) + 1e-6).rsqrt()
    if name == "layernorm_bwd":
        x, weight, _, incoming = arguments
        variance, mean = torch.var_mean(x.float(), 1, correction=0, keepdim=True)
        return x, weight, incoming, mean, (variance + 1e-5).rsqrt()
    if name == "softmax_bwd":
        x, incoming = arguments
        return torch.softmax(x, -1), incoming
    if name == "batchnorm":
        return _rows_last(arguments[0]), *arguments[1:]
    if name == "batchnorm_bwd":
        x, weight, *_, incoming = arguments
        variance, mean = torch.var_mean(x.float(), (0, 2, 3), correction=0)
        return _rows_last(x), weight, _rows_last(incoming), mean, (variance + 1e-5).rsqrt()
    return arguments


def _define(recipe: Recipe, given: tuple[Tensor, ...], results: Sequence[torch.dtype]) -> Any:
    """The fusion definition with symbolic sizes."""
    from nvfuser_direct import DataType, FusionDefinition

    dtypes = {
        torch.float16: DataType.Half,
        torch.bfloat16: DataType.BFloat16,
        torch.float32: DataType.Float,
        torch.float64: DataType.Double,
        torch.int64: DataType.Int,
    }
    with FusionDefinition() as fd:
        inputs = [
            fd.define_tensor(
                shape=[1 if extent == 1 else -1 for extent in a.shape],
                contiguity=[None if extent == 1 else True for extent in a.shape],
                dtype=dtypes[a.dtype],
            )
            for a in given
        ]
        values = [
            fd.ops.cast(value, dtype=DataType.Float) if a.dtype in (torch.float16, torch.bfloat16) else value
            for value, a in zip(inputs, given, strict=True)
        ]
        for result, dtype in zip(recipe(Definition(fd, inputs, values, given)), results, strict=True):
            fd.add_output(result if dtype is torch.float32 else fd.ops.cast(result, dtype=dtypes[dtype]))
    return fd


def prepare(operation: Operation, arguments: tuple[Tensor, ...]) -> Callable[[], Results] | None:
    """A fusion definition of the operation."""
    recipe = RECIPES.get(operation.name)
    if recipe is None:
        return None
    given = operands(operation.name, arguments)
    measured = arguments[0].dtype
    fd = _define(recipe, given, [torch.float32 if kind == "p" else measured for kind in operation.result])
    images = [index for index, kind in enumerate(operation.result) if kind == "i"]
    wanted, inputs = len(operation.result), list(given)

    def run() -> Results:
        found = [*fd.execute(inputs)][:wanted]
        for index in images:
            found[index] = found[index].movedim(-1, 1)
        return cast(Tensor, found[0]) if wanted == 1 else tuple(found)

    return run
