# SPDX-License-Identifier: Apache-2.0
"""The operations that are measured: a plain PyTorch function, how its arguments are made, and its minimal traffic."""

from __future__ import annotations

from collections.abc import Callable

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor

Shape = tuple[int, int]

#: rows x columns: a sweep from short to very long rows at (nearly) constant size.
SHAPES: tuple[Shape, ...] = (
    (32768, 1024),
    (16384, 4096),
    (8192, 8192),
    (4096, 16384),
    (2048, 65536),
    (1024, 262144),
)


def rmsnorm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, 1e-6)


def layernorm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, bias, 1e-5)


def softmax(x: Tensor) -> Tensor:
    return F.softmax(x, -1)


def gelu_bias(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias)


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def colsum(x: Tensor) -> Tensor:
    return x.sum(0)


def rowsum(x: Tensor) -> Tensor:
    return x.sum(-1)


@attrs.frozen
class Operation:
    """One operation.

    Attributes:
        name: what tables call it; also the key peers look up.
        function: the eager function of the arguments.
        arguments: one character an argument: "m" a matrix (rows x columns), "r" a vector of ``columns`` elements.
        result: "m", "r" (a vector of ``columns``) or "c" (a vector of ``rows``).
    """

    name: str
    function: Callable[..., Tensor]
    arguments: str
    result: str

    def make_arguments(self, shape: Shape, dtype: torch.dtype, device: str) -> tuple[Tensor, ...]:
        """Random arguments, the same for every contestant."""
        generator = torch.Generator(device).manual_seed(0)
        return tuple(
            torch.randn(shape if kind == "m" else shape[1:], dtype=dtype, device=device, generator=generator)
            for kind in self.arguments
        )

    def traffic_bytes(self, shape: Shape, dtype: torch.dtype) -> int:
        """Bytes that must move: every argument read once, the result written once."""
        rows, columns = shape
        numel = {"m": rows * columns, "r": columns, "c": rows}
        return sum(numel[kind] for kind in self.arguments + self.result) * dtype.itemsize


NORMS = (
    Operation("rmsnorm", rmsnorm, "mr", "m"),
    Operation("layernorm", layernorm, "mrr", "m"),
    Operation("softmax", softmax, "m", "m"),
)
POINTWISE = (
    Operation("gelu_bias", gelu_bias, "mr", "m"),
    Operation("silu_mul", silu_mul, "mm", "m"),
)
REDUCTIONS = (
    Operation("colsum", colsum, "m", "r"),
    Operation("rowsum", rowsum, "m", "c"),
)
SUITES: dict[str, tuple[Operation, ...]] = {"norms": NORMS, "pointwise": POINTWISE, "reductions": REDUCTIONS}
