# SPDX-License-Identifier: Apache-2.0
"""Liger-Kernel (Triton): RMS norm, layer norm and softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from torch import Tensor

from benchmarks.operations import Operation


def prepare(operation: Operation, arguments: tuple[Tensor, ...]) -> Callable[[], Tensor] | None:
    """The forward of Liger's autograd function for this operation."""
    if operation.name == "rmsnorm":
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction

        return lambda: cast(Tensor, LigerRMSNormFunction.apply(*arguments, 1e-6, 0.0, "llama", False))
    if operation.name == "layernorm":
        from liger_kernel.ops.layer_norm import LigerLayerNormFunction

        return lambda: cast(Tensor, LigerLayerNormFunction.apply(*arguments, 1e-5))
    if operation.name == "softmax":
        from liger_kernel.ops.softmax import LigerSoftmaxFunction

        return lambda: cast(Tensor, LigerSoftmaxFunction.apply(*arguments))
    return None
