# SPDX-License-Identifier: Apache-2.0
"""Kernels around calls that eager torch runs: views of parts, calls with several results."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import fusedsl
from tests.tolerance import assert_matches_eager


@fusedsl.fuse
def swiglu(x):
    gate, value = x.chunk(2, -1)
    return F.silu(gate) * value


@fusedsl.fuse
def three_parts(x):
    a, b, c = torch.split(x * 2, [1, 2, 3], dim=1)
    return a + b.sum(1, keepdim=True), c * c


@fusedsl.fuse
def rotated(x):
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1) * 3 + x


@fusedsl.fuse
def glu(x):
    return F.glu(x, -1) + 1


@fusedsl.fuse
def smallest(x):
    values, places = torch.sort(x, dim=-1)
    return values * 2, places + 1


def test_values(device):
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(4, 6, device=device).to(dtype)
        for program in (swiglu, three_parts, rotated, glu, smallest):
            assert_matches_eager(program, x)
    assert_matches_eager(swiglu, torch.randn(6, 4, device=device).t())


def test_the_arithmetic_is_one_kernel(device):
    x = torch.randn(4, 64, device=device)
    assert [s.scheduler for s in swiglu.explain(x).segments] == ["eager", "pointwise"]
    assert_matches_eager(swiglu, x)
