# SPDX-License-Identifier: Apache-2.0
"""The element types of the kernel language, as kernel text and the emitters name them."""

from __future__ import annotations

from typing import Any, Literal

import attrs
import numpy as np
import torch

Kind = Literal["bool", "int", "uint", "float"]


@attrs.frozen(repr=False)
class DType:
    """An element type.

    Attributes:
        name: the spelling in kernel text and in kernel signatures, for example ``"bfloat16"``.
        bits: width in memory (``boolean`` is one byte there).
        kind: what the bits mean.
        numpy: the NumPy dtype; None for ``bfloat16``, which NumPy lacks.
        torch: the torch dtype.
    """

    name: str
    bits: int
    kind: Kind
    numpy: np.dtype[Any] | None = attrs.field(eq=False)
    torch: torch.dtype = attrs.field(eq=False)

    @property
    def itemsize(self) -> int:
        """Bytes an element takes in memory."""
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integer(self) -> bool:
        """Signed or unsigned integer, not ``boolean``."""
        return self.kind in ("int", "uint")

    @property
    def is_half(self) -> bool:
        """A 16-bit float: tiles of it only hold data."""
        return self.kind == "float" and self.bits == 16

    def __repr__(self) -> str:
        return self.name


boolean = DType("boolean", 8, "bool", np.dtype(np.bool_), torch.bool)
int8 = DType("int8", 8, "int", np.dtype(np.int8), torch.int8)
int16 = DType("int16", 16, "int", np.dtype(np.int16), torch.int16)
int32 = DType("int32", 32, "int", np.dtype(np.int32), torch.int32)
int64 = DType("int64", 64, "int", np.dtype(np.int64), torch.int64)
uint8 = DType("uint8", 8, "uint", np.dtype(np.uint8), torch.uint8)
uint16 = DType("uint16", 16, "uint", np.dtype(np.uint16), torch.uint16)
uint32 = DType("uint32", 32, "uint", np.dtype(np.uint32), torch.uint32)
uint64 = DType("uint64", 64, "uint", np.dtype(np.uint64), torch.uint64)
float16 = DType("float16", 16, "float", np.dtype(np.float16), torch.float16)
bfloat16 = DType("bfloat16", 16, "float", None, torch.bfloat16)
float32 = DType("float32", 32, "float", np.dtype(np.float32), torch.float32)
float64 = DType("float64", 64, "float", np.dtype(np.float64), torch.float64)

#: Every element type, by name.
DTYPES: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        boolean,
        int8,
        int16,
        int32,
        int64,
        uint8,
        uint16,
        uint32,
        uint64,
        float16,
        bfloat16,
        float32,
        float64,
    )
}

_BY_TORCH = {dtype.torch: dtype for dtype in DTYPES.values()}


def from_torch(dtype: torch.dtype) -> DType:
    """The element type of a torch dtype.

    Raises:
        KeyError: kernels have no such element type (complex, float8, quantised).
    """
    return _BY_TORCH[dtype]
