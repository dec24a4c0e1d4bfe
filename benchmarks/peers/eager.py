# SPDX-License-Identifier: Apache-2.0
"""Eager PyTorch: the function as it stands."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from benchmarks.operations import Operation


def prepare(operation: Operation, arguments: tuple[Tensor, ...]) -> Callable[[], Tensor]:
    """The plain function."""
    function = operation.function
    return lambda: function(*arguments)
