# SPDX-License-Identifier: Apache-2.0
"""The numba types of the kernel language, their LLVM representation, and how pieces of tiles are taken apart and put
together.

* ``TileType(dtype, n)`` is one LLVM vector: ``<n x T>`` in general; ``<n x i1>`` for booleans; packed 32-bit words
  ``<n/2 x i32>`` (``<n x i16>`` when n is odd) for the 16-bit floats, so that a 16-byte load stays four registers.
* ``PointerType(dtype)`` is the 64-bit address, ``SharedType(dtype)`` and ``MBarriersType()`` the 32-bit address in the
  shared window.
* ``DTypeType(dtype)`` types a dtype marker; it has no run-time value.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from llvmlite import ir
from numba.cuda import types
from numba.cuda.extending import core_models, register_model, typeof_impl

from fusedsl.numba_cuda.dtypes import DType

I1, I8, I16, I32, I64 = (ir.IntType(bits) for bits in (1, 8, 16, 32, 64))
F32, F64 = ir.FloatType(), ir.DoubleType()

_INTS = {8: I8, 16: I16, 32: I32, 64: I64}


def element_type(dtype: DType) -> ir.Type:
    """LLVM type of one element in registers; the 16-bit floats are bare ``i16``."""
    if dtype.kind == "bool":
        return I1
    if dtype.kind == "float":
        return {16: I16, 32: F32, 64: F64}[dtype.bits]
    return _INTS[dtype.bits]


def is_packed(dtype: DType, n: int) -> bool:
    """Whether a tile is kept as 32-bit words of two elements."""
    return dtype.is_half and n % 2 == 0


def vector_type(dtype: DType, n: int) -> ir.VectorType:
    """LLVM type of a tile."""
    return ir.VectorType(I32, n // 2) if is_packed(dtype, n) else ir.VectorType(element_type(dtype), n)


class TileType(types.Type):
    """n elements of ``dtype`` in the registers of a thread."""

    def __init__(self, dtype: DType, n: int) -> None:
        self.dtype, self.n = dtype, n
        super().__init__(name=f"Tile({dtype}, {n})")


class PointerType(types.Type):
    """Global memory holding elements of ``dtype``."""

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype
        super().__init__(name=f"Pointer({dtype})")


class SharedType(types.Type):
    """A shared-memory array of ``dtype``."""

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype
        super().__init__(name=f"Shared({dtype})")


class MBarriersType(types.Type):
    """An array of mbarriers in shared memory."""

    def __init__(self) -> None:
        super().__init__(name="MBarriers")


class DTypeType(types.Type):
    """A dtype marker such as ``float32`` in kernel text."""

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype
        super().__init__(name=f"DType({dtype})")


@register_model(TileType)
class _TileModel(core_models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: TileType) -> None:
        super().__init__(dmm, fe_type, vector_type(fe_type.dtype, fe_type.n))


@register_model(PointerType)
class _PointerModel(core_models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: PointerType) -> None:
        super().__init__(dmm, fe_type, I64)


@register_model(SharedType)
class _SharedModel(core_models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: SharedType) -> None:
        super().__init__(dmm, fe_type, I32)


@register_model(MBarriersType)
class _MBarriersModel(core_models.PrimitiveModel):
    def __init__(self, dmm: Any, fe_type: MBarriersType) -> None:
        super().__init__(dmm, fe_type, I32)


register_model(DTypeType)(core_models.OpaqueModel)


@typeof_impl.register(DType)
def _typeof_dtype(value: DType, _: object) -> DTypeType:
    return DTypeType(value)


def build_vector(builder: ir.IRBuilder, element: ir.Type, values: Sequence[ir.Value]) -> ir.Value:
    """An LLVM vector of scalar values."""
    if all(isinstance(value, ir.Constant) for value in values):
        return ir.Constant(ir.VectorType(element, len(values)), list(values))
    vector = ir.Constant(ir.VectorType(element, len(values)), ir.Undefined)
    for i, value in enumerate(values):
        vector = builder.insert_element(vector, value, ir.Constant(I32, i))
    return vector


def vector_lanes(builder: ir.IRBuilder, vector: ir.Value) -> list[ir.Value]:
    """The scalar values of an LLVM vector."""
    return [builder.extract_element(vector, ir.Constant(I32, i)) for i in range(vector.type.count)]


def elements(builder: ir.IRBuilder, tile: TileType, vector: ir.Value) -> list[ir.Value]:
    """The n elements of a tile, each of `element_type`."""
    lanes = vector_lanes(builder, vector)
    if not is_packed(tile.dtype, tile.n):
        return lanes
    halves = []
    for word in lanes:
        halves.append(builder.trunc(word, I16))
        halves.append(builder.trunc(builder.lshr(word, ir.Constant(I32, 16)), I16))
    return halves


def from_elements(builder: ir.IRBuilder, dtype: DType, values: Sequence[ir.Value]) -> ir.Value:
    """A tile of n elements, each of `element_type`."""
    if not is_packed(dtype, len(values)):
        return build_vector(builder, element_type(dtype), values)
    return build_vector(builder, I32, pack_halves(builder, values))


def pack_halves(builder: ir.IRBuilder, values: Sequence[ir.Value]) -> list[ir.Value]:
    """32-bit words of pairs of 16-bit values, the first in the low half."""
    words = []
    for low, high in zip(values[::2], values[1::2], strict=True):
        high_word = builder.shl(builder.zext(high, I32), ir.Constant(I32, 16))
        words.append(builder.or_(builder.zext(low, I32), high_word))
    return words


def splat(builder: ir.IRBuilder, value: ir.Value, n: int) -> ir.Value:
    """An LLVM vector of n copies of a scalar."""
    if isinstance(value, ir.Constant):
        return ir.Constant(ir.VectorType(value.type, n), [value] * n)
    one = builder.insert_element(ir.Constant(ir.VectorType(value.type, n), ir.Undefined), value, ir.Constant(I32, 0))
    if n == 1:
        return one
    mask = ir.Constant(ir.VectorType(I32, n), [ir.Constant(I32, 0)] * n)
    return builder.shuffle_vector(one, ir.Constant(one.type, ir.Undefined), mask)


def spread(builder: ir.IRBuilder, tile: TileType, vector: ir.Value, n: int) -> ir.Value:
    """A tile of n elements: the tile itself, or copies of its only element."""
    if tile.n == n:
        return vector
    (value,) = elements(builder, tile, vector)
    return from_elements(builder, tile.dtype, [value] * n) if tile.dtype.is_half else splat(builder, value, n)
