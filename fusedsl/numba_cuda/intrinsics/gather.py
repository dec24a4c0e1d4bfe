# SPDX-License-Identifier: Apache-2.0
"""Element-wise access to global memory at computed places: gather and scatter."""

from __future__ import annotations

from collections.abc import Sequence

from llvmlite import ir
from numba.cuda import types
from numba.cuda.core.errors import TypingError

from fusedsl.numba_cuda.convert import common_length, convert_scalar, operand, to_bits
from fusedsl.numba_cuda.dtypes import DType, boolean
from fusedsl.numba_cuda.intrinsics.access import Access, assemble, load_access, store_access, to_registers
from fusedsl.numba_cuda.intrinsics.memory import check_index, check_pointer, element_address
from fusedsl.numba_cuda.registry import KernelFunction, Typed, is_none, is_number, kernel_function
from fusedsl.numba_cuda.tile import I64, TileType, elements


def _element_access(dtype: DType) -> Access:
    return Access(dtype.bits, 1)


def _indexed(name: str, p: types.Type, index: types.Type, mask: types.Type, *values: types.Type) -> tuple[DType, int]:
    """dtype and number of elements of a gather or scatter."""
    dtype = check_pointer(p)
    tiles = [t for t in (index, mask, *values) if isinstance(t, TileType)]
    if isinstance(index, TileType):
        if index.dtype.name not in ("int32", "int64"):
            raise TypingError(f"{name}: the index must be int32 or int64, not {index}")
    else:
        check_index(f"{name}: the index", index)
    if isinstance(mask, TileType) and mask.dtype != boolean:
        raise TypingError(f"{name}: the mask must be boolean, not {mask}")
    if not isinstance(mask, TileType) and not is_none(mask) and not is_number(mask):
        raise TypingError(f"{name}: the mask must be a boolean tile or None, not {mask}")
    for value in values:
        if isinstance(value, TileType) and value.dtype != dtype:
            raise TypingError(f"{name} of {value} where a tile of {dtype} is needed")
    return dtype, common_length(name, *tiles) if tiles else 1


def _addresses(
    builder: ir.IRBuilder, dtype: DType, pointer: ir.Value, index: types.Type, value: ir.Value, n: int
) -> list[ir.Value]:
    """Element addresses; one address serves all n where the index is a scalar."""
    if isinstance(index, TileType):
        indices = elements(builder, index, value)
        wide = [builder.sext(i, I64) if i.type != I64 else i for i in indices]
    else:
        wide = [value]
    out = [element_address(builder, pointer, i, dtype) for i in wide]
    return out * n if len(out) == 1 else out


def _masks(builder: ir.IRBuilder, mask: types.Type, value: ir.Value, n: int) -> Sequence[ir.Value | None]:
    if is_none(mask):
        return [None] * n
    vector = operand(builder, mask, value, boolean, n)
    return elements(builder, TileType(boolean, n), vector)


@kernel_function
def gather(p: types.Type, index: types.Type, mask: types.Type, fill: types.Type = 0) -> Typed:
    """Tile of ``p[index]``: an int32 or int64 tile of element offsets; where the mask is false, ``fill`` and no
    access."""
    dtype, n = _indexed("gather", p, index, mask)
    access = _element_access(dtype)

    def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> ir.Value:
        masks = _masks(builder, mask, args[2], n)
        fills: list[ir.Value] = []
        if not is_none(mask):
            element = to_bits(builder, dtype, convert_scalar(builder, fill, args[3], dtype))
            fills = to_registers(builder, dtype, access, [element])
        loaded = [
            (access, load_access(builder, "ld.global", access, address, 0, predicate, fills))
            for address, predicate in zip(_addresses(builder, dtype, args[0], index, args[1], n), masks, strict=True)
        ]
        return assemble(builder, dtype, n, loaded)

    return TileType(dtype, n), emit


@kernel_function
def scatter(p: types.Type, index: types.Type, mask: types.Type, tile: types.Type) -> Typed:
    """``p[index] = tile`` where the mask is true; a one-element tile or a number is spread."""
    dtype, n = _indexed("scatter", p, index, mask, tile)
    access = _element_access(dtype)

    def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> None:
        masks = _masks(builder, mask, args[2], n)
        value = operand(builder, tile, args[3], dtype, n)
        addresses = _addresses(builder, dtype, args[0], index, args[1], n)
        bits = [to_bits(builder, dtype, v) for v in elements(builder, TileType(dtype, n), value)]
        for address, predicate, element in zip(addresses, masks, bits, strict=True):
            registers = to_registers(builder, dtype, access, [element])
            store_access(builder, "st.global", access, address, 0, registers, predicate)

    return types.none, emit


FUNCTIONS: tuple[KernelFunction, ...] = (gather, scatter)
