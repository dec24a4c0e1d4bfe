# SPDX-License-Identifier: Apache-2.0
"""Shared memory: static and dynamic arrays, contiguous loads and stores (PTX ISA ``ld.shared``, ``st.shared``)."""

from __future__ import annotations

from llvmlite import ir
from numba.cuda import types
from numba.cuda.core.errors import TypingError

from fusedsl.numba_cuda.convert import operand
from fusedsl.numba_cuda.dtypes import DType
from fusedsl.numba_cuda.intrinsics.access import assemble, disassemble, load_access, split_bytes, store_access
from fusedsl.numba_cuda.registry import KernelFunction, Typed, kernel_function, literal, marker
from fusedsl.numba_cuda.tile import I8, I32, SharedType, TileType

#: LLVM address space of shared memory.
_SHARED = 3
_ALIGNMENT = 16
_DYNAMIC_NAME = "fusedsl_dynamic_shared"


def _shared_address(builder: ir.IRBuilder, array: ir.GlobalVariable) -> ir.Value:
    return builder.ptrtoint(array, I32)


@kernel_function
def shared(dtype: types.Type, n: types.Type) -> Typed:
    """A static shared array of n elements, 16-byte aligned; each call site is an array of its own."""
    element = marker(dtype)
    size = literal(n, "n") * element.itemsize

    def emit(builder: ir.IRBuilder, _: list[ir.Value]) -> ir.Value:
        module = builder.module
        name = module.get_unique_name("fusedsl_shared")
        array = ir.GlobalVariable(module, ir.ArrayType(I8, size), name, addrspace=_SHARED)
        array.linkage = "internal"
        array.align = _ALIGNMENT
        array.initializer = ir.Constant(array.value_type, ir.Undefined)
        return _shared_address(builder, array)

    return SharedType(element), emit


@kernel_function
def dynamic_shared(dtype: types.Type) -> Typed:
    """The dynamic part of shared memory (its size is in the launch geometry), 16-byte aligned; all calls give the
    same bytes."""
    element = marker(dtype)

    def emit(builder: ir.IRBuilder, _: list[ir.Value]) -> ir.Value:
        module = builder.module
        array = module.globals.get(_DYNAMIC_NAME)
        if array is None:
            array = ir.GlobalVariable(module, ir.ArrayType(I8, 0), _DYNAMIC_NAME, addrspace=_SHARED)
            array.align = _ALIGNMENT
        return _shared_address(builder, array)

    return SharedType(element), emit


def _check_array(array: types.Type) -> DType:
    if not isinstance(array, SharedType):
        raise TypingError(f"a shared array is needed, not {array}")
    return array.dtype


def _check_index(index: types.Type) -> None:
    plain = types.unliteral(index)
    if not isinstance(plain, types.Integer):
        raise TypingError(f"the index of a shared array must be an int, not {index}")


def _address(builder: ir.IRBuilder, array: ir.Value, index: ir.Value, dtype: DType) -> ir.Value:
    narrow = builder.trunc(index, I32)
    return builder.add(array, builder.mul(narrow, ir.Constant(I32, dtype.itemsize)))


@kernel_function
def shared_load(s: types.Type, index: types.Type, n: types.Type) -> Typed:
    """Tile of ``s[index : index + n]``.

    The bytes must be aligned to the largest power of two up to 16 that divides ``n * itemsize``; each access is that
    wide.
    """
    dtype, count = _check_array(s), literal(n, "n")
    _check_index(index)
    accesses = split_bytes(count * dtype.itemsize, dtype.itemsize)

    def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> ir.Value:
        address = _address(builder, args[0], args[1], dtype)
        loaded = [
            (access, load_access(builder, "ld.shared", access, address, i * access.bytes))
            for i, access in enumerate(accesses)
        ]
        return assemble(builder, dtype, count, loaded)

    return TileType(dtype, count), emit


@kernel_function
def shared_store(s: types.Type, index: types.Type, tile: types.Type) -> Typed:
    """``s[index : index + n] = tile``, aligned as for `shared_load`; a number is one element."""
    dtype = _check_array(s)
    _check_index(index)
    if isinstance(tile, TileType) and tile.dtype != dtype:
        raise TypingError(f"shared_store of {tile} into {s}")
    count = tile.n if isinstance(tile, TileType) else 1
    accesses = split_bytes(count * dtype.itemsize, dtype.itemsize)

    def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> None:
        address = _address(builder, args[0], args[1], dtype)
        value = operand(builder, tile, args[2], dtype, count)
        groups = disassemble(builder, TileType(dtype, count), value, accesses)
        for i, (access, registers) in enumerate(zip(accesses, groups, strict=True)):
            store_access(builder, "st.shared", access, address, i * access.bytes, registers)

    return types.none, emit


FUNCTIONS: tuple[KernelFunction, ...] = (shared, dynamic_shared, shared_load, shared_store)
