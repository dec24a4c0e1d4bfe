# SPDX-License-Identifier: Apache-2.0
"""The suites: which operations are measured, and at which shapes."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from benchmarks.operations import Operation, Shape, Suite, gradient

#: rows x columns: from short to very long rows at (nearly) constant size.
SHAPES: tuple[Shape, ...] = (
    (32768, 1024),
    (16384, 4096),
    (8192, 8192),
    (4096, 16384),
    (2048, 65536),
    (1024, 262144),
)

#: batch x channels x height x width.
IMAGES: tuple[Shape, ...] = (
    (256, 64, 56, 56),
    (256, 1024, 14, 14),
    (64, 512, 28, 28),
    (256, 2048, 7, 7),
    (32, 64, 112, 112),
)


def rmsnorm(x: Tensor, weight: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, 1e-6)


def layernorm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, bias, 1e-5)


def softmax(x: Tensor) -> Tensor:
    return F.softmax(x, -1)


def cross_entropy(x: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(x, target, reduction="none")


def gelu_bias(x: Tensor, bias: Tensor) -> Tensor:
    return F.gelu(x + bias)


def silu_mul(gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(gate) * up


def colsum(x: Tensor) -> Tensor:
    return x.sum(0)


def rowsum(x: Tensor) -> Tensor:
    return x.sum(-1)


def batchnorm(x: Tensor, weight: Tensor, bias: Tensor, running_mean: Tensor, running_var: Tensor) -> Tensor:
    return F.batch_norm(x, running_mean, running_var, weight, bias, True, 0.1, 1e-5)


NORMS = (
    Operation("rmsnorm", rmsnorm, "mr", "m"),
    Operation("layernorm", layernorm, "mrr", "m"),
    Operation("softmax", softmax, "m", "m"),
    Operation("cross_entropy", cross_entropy, "mt", "c"),
)
#: The softmax's gradient needs its result instead of its argument; both are one matrix.
NORMS_BACKWARD = (
    gradient("rmsnorm_bwd", rmsnorm, "mrm", (0, 1)),
    gradient("layernorm_bwd", layernorm, "mrrm", (0, 1, 2), unread=(2,)),
    gradient("softmax_bwd", softmax, "mm", (0,)),
)
POINTWISE = (
    Operation("gelu_bias", gelu_bias, "mr", "m"),
    Operation("silu_mul", silu_mul, "mm", "m"),
)
REDUCTIONS = (
    Operation("colsum", colsum, "m", "r"),
    Operation("rowsum", rowsum, "m", "c"),
)
#: Training: the forward pass updates the running statistics, its gradient does not read them.
BATCHNORM = (
    Operation("batchnorm", batchnorm, "ipppp", "i", changed=(3, 4)),
    gradient("batchnorm_bwd", batchnorm, "ippppi", (0, 1, 2), unread=(2, 3, 4)),
)
SUITES: dict[str, Suite] = {
    "norms": Suite(NORMS, SHAPES),
    "pointwise": Suite(POINTWISE, SHAPES),
    "reductions": Suite(REDUCTIONS, SHAPES),
    "norms_backward": Suite(NORMS_BACKWARD, SHAPES),
    "batchnorm": Suite(BATCHNORM, IMAGES),
}
