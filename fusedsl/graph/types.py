# SPDX-License-Identifier: Apache-2.0
"""Types of graph values: symbolic extents, tensor types, host scalar types."""

from __future__ import annotations

from typing import Literal

import attrs
import torch


@attrs.frozen
class Symbol:
    """A symbolic extent: the size of dim ``dim`` of the value that introduced it.

    Two dims that the function requires to be equal share one symbol. ``hint`` is the extent seen when tracing; it never
    takes part in equality, so graphs traced at different sizes compare equal.
    """

    name: str
    hint: int = attrs.field(eq=False, repr=False)

    def __str__(self) -> str:
        return self.name


#: The size of a dim: 0 and 1 (and sizes the function made static) are plain ints, everything else is symbolic.
Extent = int | Symbol


def extent_hint(extent: Extent) -> int:
    """The size of ``extent`` at tracing time."""
    return extent if isinstance(extent, int) else extent.hint


@attrs.frozen
class TensorType:
    """dtype and extents of a tensor value."""

    dtype: torch.dtype
    shape: tuple[Extent, ...]

    @property
    def rank(self) -> int:
        return len(self.shape)

    def __str__(self) -> str:
        return f"{dtype_name(self.dtype)}[{', '.join(map(str, self.shape))}]"


@attrs.frozen
class ScalarType:
    """A Python number known only at call time; evaluated on the host and passed to kernels as an argument."""

    kind: Literal["bool", "int", "float"]

    def __str__(self) -> str:
        return self.kind


ValueType = TensorType | ScalarType


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``."""
    return str(dtype).removeprefix("torch.")


_COMPUTE = {torch.float16: torch.float32, torch.bfloat16: torch.float32}


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype arithmetic is done in: float32 for the 16-bit floats, the dtype itself otherwise."""
    return _COMPUTE.get(dtype, dtype)
