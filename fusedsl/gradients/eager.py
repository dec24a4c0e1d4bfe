# SPDX-License-Identifier: Apache-2.0
"""Gradients of opaque calls: eager torch runs the call again and differentiates it."""

from __future__ import annotations

from typing import Any

import torch

from fusedsl.graph.opaque import CallTemplate, resolve_function

#: Where graphs find ``pullback``.
PULLBACK = f"{__name__}.pullback"

_RANDOM = ("rand", "dropout", "bernoulli", "multinomial", "normal", "rrelu", "poisson", "exponential")


def is_random(function: str) -> bool:
    """Whether a callable draws random numbers, so that running it again gives another result."""
    name = function.rsplit(".", 1)[-1]
    return name != "normalize" and not name.endswith("_loss") and any(word in name for word in _RANDOM)


def pullback(
    function: str,
    call: CallTemplate,
    differentiated: tuple[int, ...],
    received: tuple[int, ...],
    count: int,
    *values: Any,
) -> tuple[torch.Tensor, ...] | torch.Tensor:
    """The gradients of an opaque call.

    Args:
        function: qualified name of the callable.
        call: its arguments.
        differentiated: which operands want a gradient.
        received: which results have an incoming gradient.
        count: number of operands.
        values: the operands, then the incoming gradients, one a received result.

    Returns:
        One gradient a differentiated operand, in its dtype and shape; the tensor itself if there is one. Zeros where
        torch finds no connection. Differentiable again if the values require gradients.
    """
    again = torch.is_grad_enabled() and any(isinstance(v, torch.Tensor) and v.requires_grad for v in values)
    with torch.enable_grad():
        operands = list(values[:count])
        for index in differentiated:
            operands[index] = operands[index].view_as(operands[index]) if again else operands[index].detach()
            if not operands[index].requires_grad:
                operands[index].requires_grad_()
        args, kwargs = call.fill(operands)
        result = resolve_function(function)(*args, **kwargs)
        results = [result] if isinstance(result, torch.Tensor) else list(result)
        pairs = [
            (results[index], gradient.to(results[index].dtype))
            for index, gradient in zip(received, values[count:], strict=True)
            if results[index].requires_grad
        ]
        wanted = [operands[index] for index in differentiated]
        found: list[torch.Tensor | None] = [None] * len(wanted)
        if pairs:
            outputs, gradients = zip(*pairs, strict=True)
            found = list(torch.autograd.grad(outputs, wanted, gradients, create_graph=again, allow_unused=True))
    filled = tuple(torch.zeros_like(w) if g is None else g for w, g in zip(wanted, found, strict=True))
    return filled[0] if len(filled) == 1 else filled
