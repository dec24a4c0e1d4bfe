# SPDX-License-Identifier: Apache-2.0
"""QuACK (CuTe DSL): RMS norm, layer norm, softmax, their gradients, cross entropy; layer norm with float32 weights."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from torch import Tensor

from benchmarks.operations import Operation, Results

Call = Callable[[], Results]


def _rmsnorm(x: Tensor, weight: Tensor) -> Call:
    from quack.rmsnorm import rmsnorm_fwd

    return lambda: cast(Tensor, rmsnorm_fwd(x, weight, eps=1e-6)[0])


def _layernorm(x: Tensor, weight: Tensor, bias: Tensor) -> Call:
    from quack.rmsnorm import layernorm_fwd

    scale, shift = weight.float(), bias.float()

    def run() -> Tensor:
        result = layernorm_fwd(x, scale, shift, eps=1e-5)
        return cast(Tensor, result[0] if isinstance(result, tuple) else result)

    return run


def _softmax(x: Tensor) -> Call:
    from quack.softmax import softmax_fwd

    return lambda: cast(Tensor, softmax_fwd(x))


def _cross_entropy(x: Tensor, target: Tensor) -> Call:
    from quack.cross_entropy import cross_entropy_fwd

    return lambda: cast(Tensor, cross_entropy_fwd(x, target))


def _rmsnorm_bwd(x: Tensor, weight: Tensor, incoming: Tensor) -> Call:
    from quack.rmsnorm import rmsnorm_bwd, rmsnorm_fwd

    rstd = rmsnorm_fwd(x, weight, eps=1e-6, store_rstd=True)[2]
    return lambda: cast(tuple[Tensor, ...], tuple(rmsnorm_bwd(x, weight, incoming, rstd)[:2]))


def _layernorm_bwd(x: Tensor, weight: Tensor, bias: Tensor, incoming: Tensor) -> Call:
    from quack.rmsnorm import layernorm_bwd, layernorm_fwd

    scale = weight.float()
    _, rstd, mean = layernorm_fwd(x, scale, bias.float(), eps=1e-5, return_rstd=True, return_mean=True)
    return lambda: cast(tuple[Tensor, ...], tuple(layernorm_bwd(x, scale, incoming, rstd, mean)))


def _softmax_bwd(x: Tensor, incoming: Tensor) -> Call:
    from quack.softmax import softmax_bwd, softmax_fwd

    y = softmax_fwd(x)
    return lambda: cast(Tensor, softmax_bwd(incoming, y))


CALLS: dict[str, Callable[..., Call]] = {
    "rmsnorm": _rmsnorm,
    "layernorm": _layernorm,
    "softmax": _softmax,
    "cross_entropy": _cross_entropy,
    "rmsnorm_bwd": _rmsnorm_bwd,
    "layernorm_bwd": _layernorm_bwd,
    "softmax_bwd": _softmax_bwd,
}


def prepare(operation: Operation, arguments: tuple[Tensor, ...]) -> Call | None:
    """QuACK's function for this operation, with what its forward pass saves."""
    make = CALLS.get(operation.name)
    return None if make is None else make(*arguments)
