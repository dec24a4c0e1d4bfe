# SPDX-License-Identifier: Apache-2.0
"""Layer norm over the last dim, written out: one kernel that reads each row once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

import fusedsl
from examples.common import check, default_device, default_shape, time_against_eager


@fusedsl.fuse
def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    var = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) * torch.rsqrt(var + eps) * weight + bias


def eager(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """What PyTorch offers for it."""
    return F.layer_norm(x, (x.shape[-1],), weight, bias, 1e-5)


def make_arguments() -> tuple[Tensor, Tensor, Tensor]:
    """x: bf16[rows, columns]; weight, bias: bf16[columns]."""
    device = default_device()
    rows, columns = default_shape(device)
    x = torch.randn(rows, columns, device=device, dtype=torch.bfloat16)
    weight = torch.rand(columns, device=device, dtype=torch.bfloat16) + 0.5
    bias = torch.randn(columns, device=device, dtype=torch.bfloat16)
    return x, weight, bias


def main() -> None:
    """Check against PyTorch, then time."""
    arguments = make_arguments()
    check("layer_norm", layer_norm, eager, arguments)
    time_against_eager("layer_norm", layer_norm, eager, arguments)


if __name__ == "__main__":
    main()
