# SPDX-License-Identifier: Apache-2.0
"""QuACK (CuTe DSL): RMS norm, layer norm and softmax."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from torch import Tensor

from benchmarks.operations import Operation


def prepare(operation: Operation, arguments: tuple[Tensor, ...]) -> Callable[[], Tensor] | None:
    """QuACK's forward function for this operation; its layer norm takes float32 weights."""
    if operation.name == "rmsnorm":
        from quack.rmsnorm import rmsnorm_fwd

        return lambda: cast(Tensor, rmsnorm_fwd(*arguments, eps=1e-6)[0])
    if operation.name == "layernorm":
        from quack.rmsnorm import layernorm_fwd

        x, weight, bias = arguments[0], arguments[1].float(), arguments[2].float()

        def run() -> Tensor:
            result = layernorm_fwd(x, weight, bias, eps=1e-5)
            return cast(Tensor, result[0] if isinstance(result, tuple) else result)

        return run
    if operation.name == "softmax":
        from quack.softmax import softmax_fwd

        return lambda: cast(Tensor, softmax_fwd(*arguments))
    return None
