# SPDX-License-Identifier: Apache-2.0
"""Functions that the scheduler tests share, one a pattern."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import fusedsl


@fusedsl.fuse
def layer_norm(x, weight, bias, eps=1e-5):
    mean = x.mean(-1, keepdim=True)
    var = ((x - mean) ** 2).mean(-1, keepdim=True)
    return (x - mean) * torch.rsqrt(var + eps) * weight + bias


@fusedsl.fuse
def softmax(x):
    return F.softmax(x, -1)


@fusedsl.fuse
def gelu_bias(x, bias):
    return F.gelu(x + bias)


@fusedsl.fuse
def scale_shift(x):
    return x * 2 + 1


@fusedsl.fuse
def row_sum(x):
    return x.sum(-1)


@fusedsl.fuse
def column_sum(x):
    return x.sum(0)


@fusedsl.fuse
def total(x):
    return x.sum()


@fusedsl.fuse
def middle(x):
    return x.sum(1), x.amax(1)


@fusedsl.fuse
def outer_and_inner(x):
    return x.sum((0, 2))


@fusedsl.fuse
def positions(x):
    return x.argmax(-1), x.argmin(-1)


@fusedsl.fuse
def column_positions(x):
    return x.argmax(0)


@fusedsl.fuse
def statistics(x):
    mean = x.mean(-1)
    return x - mean[:, None], mean


@fusedsl.fuse
def column_softmax(x):
    return F.softmax(x, 0)


@fusedsl.fuse
def apart(x):
    return x - x.mean((0, 1))


@fusedsl.fuse
def two_norms(x, y):
    return F.softmax(x, -1) + y.mean(0)
