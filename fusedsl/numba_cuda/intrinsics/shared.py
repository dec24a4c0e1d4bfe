# SPDX-License-Identifier: Apache-2.0
"""Shared memory: static and dynamic arrays, loads and stores of contiguous elements and of tiles in chunks (PTX ISA
``ld.shared``, ``st.shared``)."""

from __future__ import annotations

import attrs
from llvmlite import ir
from numba.cuda import types
from numba.cuda.core.errors import TypingError

from fusedsl.numba_cuda.convert import operand
from fusedsl.numba_cuda.dtypes import DType
from fusedsl.numba_cuda.intrinsics.access import Access, assemble, disassemble, load_access, split_bytes, store_access
from fusedsl.numba_cuda.registry import KernelFunction, Typed, kernel_function, literal, marker
from fusedsl.numba_cuda.tile import I8, I32, SharedType, TileType

#: LLVM address space of shared memory.
_SHARED = 3
_ALIGNMENT = 16
_DYNAMIC_NAME = "fusedsl_dynamic_shared"


def static_array(builder: ir.IRBuilder, size: int) -> ir.Value:
    """Address of a new static array of ``size`` bytes, 16-byte aligned."""
    module = builder.module
    array = ir.GlobalVariable(
        module, ir.ArrayType(I8, size), module.get_unique_name("fusedsl_shared"), addrspace=_SHARED
    )
    array.linkage = "internal"
    array.align = _ALIGNMENT
    array.initializer = ir.Constant(array.value_type, ir.Undefined)
    return builder.ptrtoint(array, I32)


@kernel_function
def shared(dtype: types.Type, n: types.Type) -> Typed:
    """A static shared array of n elements, 16-byte aligned; each call site is an array of its own."""
    element = marker(dtype)
    size = literal(n, "n") * element.itemsize
    return SharedType(element), lambda builder, _: static_array(builder, size)


@kernel_function
def dynamic_shared(dtype: types.Type, byte_offset: types.Type = 0) -> Typed:
    """The dynamic part of shared memory (its size is in the launch geometry) from ``byte_offset`` on, a multiple of
    16; views of the same bytes overlap."""
    element = marker(dtype)
    start = literal(byte_offset, "byte_offset")
    if start < 0 or start % _ALIGNMENT:
        raise TypingError(f"byte_offset must be a multiple of {_ALIGNMENT}, not {start}")

    def emit(builder: ir.IRBuilder, _: list[ir.Value]) -> ir.Value:
        module = builder.module
        array = module.globals.get(_DYNAMIC_NAME)
        if array is None:
            array = ir.GlobalVariable(module, ir.ArrayType(I8, 0), _DYNAMIC_NAME, addrspace=_SHARED)
            array.align = _ALIGNMENT
        return builder.add(builder.ptrtoint(array, I32), ir.Constant(I32, start))

    return SharedType(element), emit


def check_array(array: types.Type) -> DType:
    """The dtype of a shared-array argument."""
    if not isinstance(array, SharedType):
        raise TypingError(f"a shared array is needed, not {array}")
    return array.dtype


def check_int(name: str, argument: types.Type) -> None:
    """An argument must be an int."""
    plain = types.unliteral(argument)
    if not isinstance(plain, types.Integer) or plain.bitwidth != 64:
        raise TypingError(f"{name} must be an int, not {argument}")


def narrow(builder: ir.IRBuilder, value: ir.Value) -> ir.Value:
    """An int argument as 32 bits."""
    return builder.trunc(value, I32)


def shared_address(builder: ir.IRBuilder, array: ir.Value, index: ir.Value, itemsize: int) -> ir.Value:
    """Address of ``array[index]`` in the shared window."""
    return builder.add(array, builder.mul(narrow(builder, index), ir.Constant(I32, itemsize)))


@attrs.frozen
class SharedChunks:
    """How a tile of ``batch * vector`` elements lies in a shared array: chunks ``stride`` elements apart."""

    dtype: DType
    batch: int
    stride: int
    vector: int

    @property
    def tile(self) -> TileType:
        return TileType(self.dtype, self.batch * self.vector)

    @property
    def accesses(self) -> list[tuple[Access, int]]:
        """Each access and its distance from the first in bytes."""
        size = self.dtype.itemsize
        parts = split_bytes(self.vector * size, size)
        return [
            (part, b * self.stride * size + i * part.bytes) for b in range(self.batch) for i, part in enumerate(parts)
        ]

    def load(self, builder: ir.IRBuilder, space: str, address: ir.Value) -> ir.Value:
        """The tile from ``address`` on, by ``ld.shared`` or ``ld.shared::cluster``."""
        loaded = [(access, load_access(builder, space, access, address, byte)) for access, byte in self.accesses]
        return assemble(builder, self.dtype, self.tile.n, loaded)

    def store(self, builder: ir.IRBuilder, space: str, address: ir.Value, vector: ir.Value) -> None:
        """Write the tile from ``address`` on, by ``st.shared`` or ``st.shared::cluster``."""
        accesses = self.accesses
        groups = disassemble(builder, self.tile, vector, [access for access, _ in accesses])
        for (access, byte), registers in zip(accesses, groups, strict=True):
            store_access(builder, space, access, address, byte, registers)


def contiguous(name: str, s: types.Type, tile: types.Type) -> SharedChunks:
    """The chunk that a store of a tile (or a number) covers."""
    dtype = check_array(s)
    if isinstance(tile, TileType) and tile.dtype != dtype:
        raise TypingError(f"{name} of {tile} into {s}")
    return SharedChunks(dtype, 1, 0, tile.n if isinstance(tile, TileType) else 1)


@kernel_function
def shared_load(s: types.Type, index: types.Type, n: types.Type) -> Typed:
    """Tile of ``s[index : index + n]``.

    The bytes must be aligned to the largest power of two up to 16 that divides ``n * itemsize``; each access is that
    wide.
    """
    chunks = SharedChunks(check_array(s), 1, 0, literal(n, "n"))
    check_int("index", index)

    def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> ir.Value:
        return chunks.load(builder, "ld.shared", shared_address(builder, args[0], args[1], chunks.dtype.itemsize))

    return chunks.tile, emit


@kernel_function
def shared_store(s: types.Type, index: types.Type, tile: types.Type) -> Typed:
    """``s[index : index + n] = tile``, aligned as for `shared_load`; a number is one element."""
    chunks = contiguous("shared_store", s, tile)
    check_int("index", index)

    def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> None:
        address = shared_address(builder, args[0], args[1], chunks.dtype.itemsize)
        chunks.store(builder, "st.shared", address, operand(builder, tile, args[2], chunks.dtype, chunks.tile.n))

    return types.none, emit


def _tile_chunks(
    s: types.Type, index: types.Type, batch: types.Type, stride: types.Type, vector: types.Type
) -> SharedChunks:
    batches, distance, width = (
        literal(a, name) for a, name in ((batch, "batch"), (stride, "stride"), (vector, "vector"))
    )
    check_int("index", index)
    if width < 1 or width & (width - 1) or batches < 1:
        raise TypingError(f"vector must be a power of two and batch at least 1, got vector={width}, batch={batches}")
    return SharedChunks(check_array(s), batches, distance, width)


@kernel_function
def shared_load_tile(
    s: types.Type, index: types.Type, batch: types.Type, stride: types.Type, vector: types.Type
) -> Typed:
    """Tile of ``batch * vector`` elements: element ``b*vector + k`` is ``s[index + b*stride + k]``.

    A chunk of up to 16 bytes is one access aligned to its size; a longer one is several of 16 bytes.
    """
    chunks = _tile_chunks(s, index, batch, stride, vector)

    def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> ir.Value:
        return chunks.load(builder, "ld.shared", shared_address(builder, args[0], args[1], chunks.dtype.itemsize))

    return chunks.tile, emit


@kernel_function
def shared_store_tile(
    s: types.Type, index: types.Type, tile: types.Type, batch: types.Type, stride: types.Type, vector: types.Type
) -> Typed:
    """Write a tile where `shared_load_tile` with the same numbers reads it; a one-element tile or a number is
    spread."""
    chunks = _tile_chunks(s, index, batch, stride, vector)
    if isinstance(tile, TileType) and (tile.dtype != chunks.dtype or tile.n not in (1, chunks.tile.n)):
        raise TypingError(f"shared_store_tile of {tile} where {chunks.tile} is needed")

    def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> None:
        address = shared_address(builder, args[0], args[1], chunks.dtype.itemsize)
        chunks.store(builder, "st.shared", address, operand(builder, tile, args[2], chunks.dtype, chunks.tile.n))

    return types.none, emit


FUNCTIONS: tuple[KernelFunction, ...] = (
    shared,
    dynamic_shared,
    shared_load,
    shared_store,
    shared_load_tile,
    shared_store_tile,
)
