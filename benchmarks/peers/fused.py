# SPDX-License-Identifier: Apache-2.0
"""fusedsl: the same function, decorated."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

import fusedsl
from benchmarks.operations import Operation


def prepare(operation: Operation, arguments: tuple[Tensor, ...]) -> Callable[[], Tensor]:
    """``fusedsl.fuse`` of the function; an op it would hand to eager torch is an error."""
    function = fusedsl.fuse(operation.function, fallback="error")
    return lambda: function(*arguments)
