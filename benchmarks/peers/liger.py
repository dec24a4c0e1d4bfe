# SPDX-License-Identifier: Apache-2.0
"""Liger-Kernel (Triton): RMS norm, layer norm, softmax and cross entropy.

Its cross entropy looks at the targets on the host before it starts its kernel, in every call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from torch import Tensor

from benchmarks.operations import Operation, Results, backward_call


def _rmsnorm(x: Tensor, weight: Tensor) -> Tensor:
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    return cast(Tensor, LigerRMSNormFunction.apply(x, weight, 1e-6, 0.0, "llama", False))


def _layernorm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    return cast(Tensor, LigerLayerNormFunction.apply(x, weight, bias, 1e-5))


def _softmax(x: Tensor) -> Tensor:
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    return cast(Tensor, LigerSoftmaxFunction.apply(x))


def _cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction

    return cast(Tensor, LigerCrossEntropyFunction.apply(x, target, None, -100, 0.0, 0.0, "none")[0])


FUNCTIONS: dict[str, Callable[..., Tensor]] = {
    "rmsnorm": _rmsnorm,
    "layernorm": _layernorm,
    "softmax": _softmax,
    "cross_entropy": _cross_entropy,
}


def prepare(operation: Operation, arguments: tuple[Tensor, ...]) -> Callable[[], Results] | None:
    """Liger's autograd function for this operation: its forward pass, or of gradients its backward pass."""
    function = FUNCTIONS.get(operation.name.removesuffix("_bwd"))
    if function is None:
        return None
    if operation.forward is not None:
        return backward_call(function, operation.wanted, arguments)
    return lambda: function(*arguments)
