# SPDX-License-Identifier: Apache-2.0
"""Eager PyTorch: the function as it stands."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from benchmarks.operations import Operation, Results, backward_call


def prepare(operation: Operation, arguments: tuple[Tensor, ...]) -> Callable[[], Results]:
    """The plain function; of gradients, autograd's backward pass."""
    if operation.forward is not None:
        return backward_call(operation.forward, operation.wanted, arguments)
    function = operation.function
    return lambda: function(*arguments)
