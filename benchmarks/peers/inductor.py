# SPDX-License-Identifier: Apache-2.0
"""torch.compile with its default backend and static shapes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.operations import Operation


def prepare(operation: Operation, arguments: tuple[Tensor, ...]) -> Callable[[], Tensor]:
    """``torch.compile`` of the function, afresh for these shapes."""
    torch._dynamo.reset()
    function = torch.compile(operation.function, dynamic=False, fullgraph=True)
    return lambda: function(*arguments)
