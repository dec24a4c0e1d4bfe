# SPDX-License-Identifier: Apache-2.0
"""How elements are held, in memory and in tiles alike: NumPy arrays of the dtype, and bfloat16 as its 16 bits."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch

from fusedsl.numba_cuda.dtypes import DTYPES, DType
from fusedsl.numba_cuda.interpreter.errors import InvalidOperand
from fusedsl.numba_cuda.interpreter.tile import Array, Scalar, convert_scalar


def element_type(dtype: DType) -> np.dtype[Any]:
    """NumPy dtype of an element."""
    return np.dtype(np.uint16) if dtype.numpy is None else dtype.numpy


#: The float32 value of every bfloat16, by its bits: one look-up is faster than three array operations.
_WIDENED = (np.arange(1 << 16, dtype=np.uint32) << 16).view(np.float32)


def widen_bfloat16(bits: Array) -> Array:
    """bfloat16 bits -> float32 values."""
    return _WIDENED[bits]


def round_to_bfloat16(values: Array) -> Array:
    """float32 values -> bits of the nearest bfloat16, ties to even; NaN stays NaN."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    words = bits >> 16
    words &= 1
    words += bits
    words += 0x7FFF
    words >>= 16
    nan = values != values
    if nan.any():
        words[nan] = 0x7FC0
    return words.astype(np.uint16)


def fill_value(dtype: DType, value: Scalar) -> Any:
    """A Python number as something NumPy puts into an array of the dtype's elements unchanged.

    Raises:
        InvalidOperand: ``value`` is no number.
    """
    if not isinstance(value, (bool, int, float)):
        raise InvalidOperand(f"a {type(value).__name__} where a number is needed")
    if not dtype.is_half:
        return convert_scalar(value, dtype)
    return _half(dtype.name, float(value))


@lru_cache(maxsize=256)
def _half(name: str, value: float) -> Any:
    with np.errstate(all="ignore"):
        single = np.array([value]).astype(np.float32)
        numpy_type = DTYPES[name].numpy
        return (round_to_bfloat16(single) if numpy_type is None else single.astype(numpy_type))[0]


def constant(dtype: DType, n: int, value: Scalar) -> Array:
    """n times a Python number converted to the dtype."""
    array = np.empty(n, element_type(dtype))
    array.fill(fill_value(dtype, value))
    return array


def poison_pattern(dtype: DType) -> Scalar:
    """What unwritten memory holds: NaN, or a large odd integer."""
    if dtype.is_float:
        return float("nan")
    return convert_scalar(0x5BAD5BAD5BAD5BAD, dtype)


def span_elements(tensor: torch.Tensor) -> int:
    """Elements from a tensor's first to its last in memory, gaps included; 0 if it is empty."""
    if tensor.numel() == 0:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def span_array(tensor: torch.Tensor, dtype: DType) -> Array:
    """The memory of a CPU tensor from its first to its last element, as a flat array that writes through."""
    flat = tensor.detach().as_strided((span_elements(tensor),), (1,))
    if dtype.numpy is None:
        flat = flat.view(torch.uint16)
    array: Array = flat.numpy()
    return array


def access_bytes(size: int) -> int:
    """Bytes an access, for that many contiguous bytes: the largest power of two, up to 16, that divides them."""
    return min(size & -size, 16)
