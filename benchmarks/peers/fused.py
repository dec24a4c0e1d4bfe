# SPDX-License-Identifier: Apache-2.0
"""fusedsl: the same function, decorated."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor

import fusedsl
from benchmarks.operations import Operation, Results, backward_call, record
from fusedsl.autograd import Link


def prepare(operation: Operation, arguments: tuple[Tensor, ...]) -> Callable[[], Results]:
    """``fusedsl.fuse`` of the function, its gradients through autograd; an op left to eager torch is an error."""
    if operation.forward is not None:
        return backward_call(fusedsl.fuse(operation.forward, fallback="error"), operation.wanted, arguments)
    function = fusedsl.fuse(operation.function, fallback="error")
    return lambda: function(*arguments)


def prepare_bare(operation: Operation, arguments: tuple[Tensor, ...]) -> Callable[[], Results] | None:
    """The backward program without autograd's engine around it; None for what is no gradient."""
    if operation.forward is None:
        return None
    function = fusedsl.fuse(operation.forward, fallback="error")
    result, _ = record(function, operation.wanted, arguments[:-1])
    node = result.grad_fn
    link = getattr(node, "link", None)
    if not isinstance(link, Link) or link.outputs is None:
        raise NotImplementedError("autograd recorded no fused call")
    saved, scalars = node.saved_tensors, node.scalars  # type: ignore[union-attr]
    received = (arguments[-1], *[None] * (len(link.outputs) - 1))

    def run() -> Results:
        with torch.no_grad():  # as autograd's engine runs it
            gradients = link.pull_back(saved, scalars, received)
        return cast(tuple[Tensor, ...], gradients)

    return run
