# SPDX-License-Identifier: Apache-2.0
"""A user's module beside the one under test."""

import torch

FACTOR = 2.0
last = None


def double(x):
    return x * FACTOR


def shifted(x, n):
    return x + torch.ones(n + 5)
