# SPDX-License-Identifier: Apache-2.0
"""Global memory in chunks: a tile is ``batch`` chunks of ``vector`` elements, a fixed step apart.

Instructions (PTX ISA ``ld``, ``st``): ``ld.global{.L1::no_allocate}{.v2,.v4}.b8|b16|b32|b64`` and
``st.global{.cs}...``. A
tile has one 64-bit base address; where strides are literals, chunks differ by the immediate in the instruction only.
"""

from __future__ import annotations

from typing import Any

import attrs
from llvmlite import ir
from numba.cuda import types
from numba.cuda.core.errors import TypingError

from fusedsl.numba_cuda.convert import convert_scalar, operand, to_bits
from fusedsl.numba_cuda.dtypes import DType
from fusedsl.numba_cuda.intrinsics.access import (
    Access,
    assemble,
    disassemble,
    load_access,
    split_bytes,
    store_access,
    to_registers,
)
from fusedsl.numba_cuda.registry import KernelFunction, Typed, is_none, kernel_function, literal
from fusedsl.numba_cuda.tile import I64, PointerType, TileType

_MAX_IMMEDIATE = 2**31 - 1


def check_pointer(argument: types.Type) -> DType:
    """The dtype of a global pointer argument."""
    if not isinstance(argument, PointerType):
        raise TypingError(f"a global pointer is needed, not {argument}")
    return argument.dtype


def check_index(name: str, argument: types.Type) -> None:
    """An argument must be a 64-bit int."""
    plain = types.unliteral(argument)
    if not isinstance(plain, types.Integer) or plain.bitwidth != 64:
        raise TypingError(f"{name} must be an int, not {argument}")


def element_address(builder: ir.IRBuilder, pointer: ir.Value, offset: ir.Value, dtype: DType) -> ir.Value:
    """Address of ``pointer[offset]``."""
    return builder.add(pointer, builder.mul(offset, ir.Constant(I64, dtype.itemsize)))


def _known(argument: types.Type) -> int | None:
    """A stride's value where it is a literal."""
    return int(argument.literal_value) if isinstance(argument, types.Literal) else None


@attrs.frozen
class Place:
    """An address: a register and an immediate number of bytes."""

    base: ir.Value
    byte: int = 0

    def moved(
        self, builder: ir.IRBuilder, times: int, stride: ir.Value | None, known: int | None, itemsize: int
    ) -> Place:
        """The place ``times`` strides (of elements) further."""
        if times == 0:
            return self
        if known is None:
            distance = builder.mul(stride, ir.Constant(I64, times * itemsize))
            return Place(builder.add(self.base, distance), self.byte)
        byte = self.byte + times * known * itemsize
        if abs(byte) <= _MAX_IMMEDIATE:
            return Place(self.base, byte)
        return Place(builder.add(self.base, ir.Constant(I64, byte)))


@attrs.frozen
class Chunks:
    """How a tile lies in memory: strides in elements, None where known only at run time."""

    dtype: DType
    batch: int
    step: int
    batch_stride: int | None
    vector: int
    element_stride: int | None
    limited: bool

    @property
    def n(self) -> int:
        """Elements of the tile."""
        return self.batch * self.vector

    @property
    def accesses(self) -> list[Access]:
        """Accesses of one chunk."""
        size = self.dtype.itemsize
        if self.element_stride == 1:
            return split_bytes(self.vector * size, size)
        return split_bytes(size, size) * self.vector

    def places(self, builder: ir.IRBuilder, base: ir.Value, strides: tuple[ir.Value, ir.Value]) -> list[list[Place]]:
        """Where the accesses of each chunk are."""
        batch_stride, element_stride = strides
        size = self.dtype.itemsize
        chunks = []
        for b in range(self.batch):
            start = Place(base).moved(builder, b, batch_stride, self.batch_stride, size)
            if self.element_stride == 1:
                width = self.accesses[0].bytes
                one = range(len(self.accesses))
                chunks.append([start.moved(builder, i, element_stride, width, 1) for i in one])
            else:
                each = range(self.vector)
                chunks.append([start.moved(builder, k, element_stride, self.element_stride, size) for k in each])
        return chunks

    def predicate(self, builder: ir.IRBuilder, limit: ir.Value, b: int) -> ir.Value | None:
        """Whether chunk b is within the limit; None without one."""
        return builder.icmp_signed(">", limit, ir.Constant(I64, b * self.step)) if self.limited else None


def chunks_of(
    p: types.Type,
    offset: types.Type,
    limit: types.Type,
    batch: types.Type,
    step: types.Type,
    batch_stride: types.Type,
    vector: types.Type,
    element_stride: types.Type,
) -> Chunks:
    """Check the arguments that all loads and stores share.

    Raises:
        TypingError: a wrong type, or a chunk that is no power of two of elements.
    """
    batches, stride, width = (literal(a, name) for a, name in ((batch, "batch"), (step, "step"), (vector, "vector")))
    for name, argument in (("offset", offset), ("batch_stride", batch_stride), ("element_stride", element_stride)):
        check_index(name, argument)
    if not is_none(limit):
        check_index("limit", limit)
    if width < 1 or width & (width - 1) or batches < 1:
        raise TypingError(f"vector must be a power of two and batch at least 1, got vector={width}, batch={batches}")
    return Chunks(
        dtype=check_pointer(p),
        batch=batches,
        step=stride,
        batch_stride=_known(batch_stride),
        vector=width,
        element_stride=_known(element_stride),
        limited=not is_none(limit),
    )


def _load(space: str, chunks: Chunks, fill: types.Type, positions: dict[str, int]) -> Typed:
    dtype = chunks.dtype
    access = chunks.accesses[0]

    def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> ir.Value:
        get = _reader(args, positions)
        base = element_address(builder, get("p"), get("offset"), dtype)
        fills: list[ir.Value] = []
        if chunks.limited:
            element = to_bits(builder, dtype, convert_scalar(builder, fill, get("fill"), dtype))
            per = max(access.bits // dtype.bits, 1)
            fills = to_registers(builder, dtype, access, [element] * per) * access.count
        loaded = []
        for b, places in enumerate(chunks.places(builder, base, (get("batch_stride"), get("element_stride")))):
            predicate = chunks.predicate(builder, get("limit"), b)
            for place in places:
                registers = load_access(builder, space, access, place.base, place.byte, predicate, fills)
                loaded.append((access, registers))
        return assemble(builder, dtype, chunks.n, loaded)

    return TileType(dtype, chunks.n), emit


def _store(space: str, chunks: Chunks, tile: types.Type, positions: dict[str, int]) -> Typed:
    dtype, n = chunks.dtype, chunks.n
    if isinstance(tile, TileType) and (tile.dtype != dtype or tile.n not in (1, n)):
        raise TypingError(f"store of {tile} where Tile({dtype}, {n}) is needed")
    accesses = chunks.accesses

    def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> None:
        get = _reader(args, positions)
        base = element_address(builder, get("p"), get("offset"), dtype)
        value = operand(builder, tile, get("tile"), dtype, n)
        groups = iter(disassemble(builder, TileType(dtype, n), value, accesses * chunks.batch))
        for b, places in enumerate(chunks.places(builder, base, (get("batch_stride"), get("element_stride")))):
            predicate = chunks.predicate(builder, get("limit"), b)
            for place in places:
                store_access(builder, space, accesses[0], place.base, place.byte, next(groups), predicate)

    return types.none, emit


def _reader(args: list[ir.Value], positions: dict[str, int]) -> Any:
    """Argument values by name; a name without a position (a stride that is a literal) has no value."""
    return lambda name: args[positions[name]] if name in positions else None


def _positions(*names: str) -> dict[str, int]:
    return {name: i for i, name in enumerate(names)}


_LOAD = _positions("p", "offset", "limit", "batch", "stride", "vector", "fill")
_STORE = _positions("p", "offset", "limit", "tile", "batch", "stride", "vector")
_LOAD_STRIDED = _positions("p", "offset", "limit", "batch", "step", "batch_stride", "vector", "element_stride", "fill")
_STORE_STRIDED = _positions("p", "offset", "limit", "tile", "batch", "step", "batch_stride", "vector", "element_stride")
_ONE = types.IntegerLiteral(1)


@kernel_function
def load(
    p: types.Type,
    offset: types.Type,
    limit: types.Type,
    batch: types.Type,
    stride: types.Type,
    vector: types.Type,
    fill: types.Type = 0,
) -> Typed:
    """Tile of ``batch * vector`` elements: element ``b*vector + k`` is ``p[offset + b*stride + k]``.

    Chunk b is read only where ``b*stride < limit`` (``limit`` None: always), else its elements are ``fill``. A chunk
    of up to 16 bytes is one access aligned to its size; a longer one is several of 16 bytes.
    """
    return _load("ld.global", chunks_of(p, offset, limit, batch, stride, stride, vector, _ONE), fill, _LOAD)


@kernel_function
def load_stream(
    p: types.Type,
    offset: types.Type,
    limit: types.Type,
    batch: types.Type,
    stride: types.Type,
    vector: types.Type,
    fill: types.Type = 0,
) -> Typed:
    """`load` for data that is read once: ``ld.global.L1::no_allocate``."""
    return _load(
        "ld.global.L1::no_allocate", chunks_of(p, offset, limit, batch, stride, stride, vector, _ONE), fill, _LOAD
    )


@kernel_function
def store(
    p: types.Type,
    offset: types.Type,
    limit: types.Type,
    tile: types.Type,
    batch: types.Type,
    stride: types.Type,
    vector: types.Type,
) -> Typed:
    """Write a tile where `load` with the same numbers reads it; a one-element tile or a number is spread."""
    return _store("st.global", chunks_of(p, offset, limit, batch, stride, stride, vector, _ONE), tile, _STORE)


@kernel_function
def store_stream(
    p: types.Type,
    offset: types.Type,
    limit: types.Type,
    tile: types.Type,
    batch: types.Type,
    stride: types.Type,
    vector: types.Type,
) -> Typed:
    """`store` of data that is not read again soon: ``st.global.cs``."""
    return _store("st.global.cs", chunks_of(p, offset, limit, batch, stride, stride, vector, _ONE), tile, _STORE)


@kernel_function
def load_strided(
    p: types.Type,
    offset: types.Type,
    limit: types.Type,
    batch: types.Type,
    step: types.Type,
    batch_stride: types.Type,
    vector: types.Type,
    element_stride: types.Type,
    fill: types.Type = 0,
) -> Typed:
    """Tile of ``batch * vector`` elements: element ``b*vector + k`` is ``p[offset + b*batch_stride +
    k*element_stride]``.

    Chunk b is read only where ``b*step < limit``. The two strides are ints, known at run time or literals; with the
    literal 1 as ``element_stride`` a chunk is one access (as of `load`), else each element is one.
    """
    chunks = chunks_of(p, offset, limit, batch, step, batch_stride, vector, element_stride)
    return _load("ld.global", chunks, fill, _LOAD_STRIDED)


@kernel_function
def load_strided_stream(
    p: types.Type,
    offset: types.Type,
    limit: types.Type,
    batch: types.Type,
    step: types.Type,
    batch_stride: types.Type,
    vector: types.Type,
    element_stride: types.Type,
    fill: types.Type = 0,
) -> Typed:
    """`load_strided` for data that is read once: ``ld.global.L1::no_allocate``."""
    chunks = chunks_of(p, offset, limit, batch, step, batch_stride, vector, element_stride)
    return _load("ld.global.L1::no_allocate", chunks, fill, _LOAD_STRIDED)


@kernel_function
def store_strided(
    p: types.Type,
    offset: types.Type,
    limit: types.Type,
    tile: types.Type,
    batch: types.Type,
    step: types.Type,
    batch_stride: types.Type,
    vector: types.Type,
    element_stride: types.Type,
) -> Typed:
    """Write a tile where `load_strided` with the same numbers reads it; a one-element tile or a number is spread."""
    chunks = chunks_of(p, offset, limit, batch, step, batch_stride, vector, element_stride)
    return _store("st.global", chunks, tile, _STORE_STRIDED)


@kernel_function
def store_strided_stream(
    p: types.Type,
    offset: types.Type,
    limit: types.Type,
    tile: types.Type,
    batch: types.Type,
    step: types.Type,
    batch_stride: types.Type,
    vector: types.Type,
    element_stride: types.Type,
) -> Typed:
    """`store_strided` of data that is not read again soon: ``st.global.cs``."""
    chunks = chunks_of(p, offset, limit, batch, step, batch_stride, vector, element_stride)
    return _store("st.global.cs", chunks, tile, _STORE_STRIDED)


FUNCTIONS: tuple[KernelFunction, ...] = (
    load,
    load_stream,
    store,
    store_stream,
    load_strided,
    load_strided_stream,
    store_strided,
    store_strided_stream,
)
