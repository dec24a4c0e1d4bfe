# SPDX-License-Identifier: Apache-2.0
"""torch.compile with its default backend and static shapes."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch._functorch.config as functorch_config
from torch import Tensor

from benchmarks.operations import Operation, Results, backward_call


def prepare(operation: Operation, arguments: tuple[Tensor, ...]) -> Callable[[], Results]:
    """``torch.compile`` of the function, afresh for these shapes; its gradients through autograd."""
    torch._dynamo.reset()
    if operation.forward is not None:
        functorch_config.donated_buffer = False  # the backward pass is run again and again
        forward = torch.compile(operation.forward, dynamic=False, fullgraph=True)
        return backward_call(forward, operation.wanted, arguments)
    function = torch.compile(operation.function, dynamic=False, fullgraph=True)
    return lambda: function(*arguments)
