# SPDX-License-Identifier: Apache-2.0
"""Whether the tensors that a call changes share memory with others of its tensors.

The graph of a function knows its arguments apart. Where a changed one shares memory with another, eager torch's order
of operations decides what is read, so such a call runs the plain function.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


class Apart:
    """Tells whether kernels may change some tensors of a call; for tensors of one layout each.

    Args:
        changed: their indices.
    """

    def __init__(self, changed: Sequence[int]) -> None:
        self._changed = tuple(changed)
        self._known: tuple[int, ...] = ()  # addresses for which the answer was yes

    def __call__(self, tensors: Sequence[Tensor]) -> bool:
        """False if a changed tensor shares memory with another one, or is an inference tensor that must not change."""
        for index in self._changed:
            if tensors[index].is_inference() and not torch.is_inference_mode_enabled():
                return False
        addresses = tuple([tensor.data_ptr() for tensor in tensors])
        if addresses == self._known:
            return True
        if not are_apart(tensors, self._changed):
            return False
        self._known = addresses
        return True


def are_apart(tensors: Sequence[Tensor], changed: Sequence[int]) -> bool:
    """Whether the memory from first to last element of each changed tensor is its own."""
    ranges = []
    for index, tensor in enumerate(tensors):
        size = span_bytes(tensor)
        if size:
            start = tensor.data_ptr()
            ranges.append((start, start + size, index in changed))
    ranges.sort()
    end = end_of_changed = 0
    for start, stop, is_changed in ranges:
        if start < end_of_changed or (is_changed and start < end):
            return False
        end = max(end, stop)
        if is_changed:
            end_of_changed = max(end_of_changed, stop)
    return True


def span_bytes(tensor: Tensor) -> int:
    """Bytes from the first element of a tensor to the end of its last."""
    if tensor.numel() == 0:
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()
