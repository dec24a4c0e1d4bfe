# SPDX-License-Identifier: Apache-2.0
"""Chunks that lie across aligned ones: each is put together from the aligned accesses that cover it (PTX ISA ``ld``,
``shf``)."""

from __future__ import annotations

import attrs
from llvmlite import ir
from numba.cuda import types
from numba.cuda.core.errors import TypingError

from fusedsl.numba_cuda.convert import asm, convert_scalar, to_bits
from fusedsl.numba_cuda.dtypes import DType
from fusedsl.numba_cuda.intrinsics.access import Access, assemble, load_access, to_registers
from fusedsl.numba_cuda.intrinsics.memory import check_index, check_pointer, element_address
from fusedsl.numba_cuda.registry import KernelFunction, Typed, is_none, kernel_function, literal
from fusedsl.numba_cuda.tile import I32, I64, TileType

_MAX_ACCESS = 16


@attrs.frozen
class _Covering:
    """The aligned accesses that cover one chunk of ``vector`` elements: those of an aligned chunk, and one more."""

    dtype: DType
    vector: int

    @property
    def access(self) -> Access:
        size = min(self.vector * self.dtype.itemsize, _MAX_ACCESS)
        return Access(64, size // 8) if self.dtype.itemsize == 8 else Access(32, size // 4)

    @property
    def count(self) -> int:
        return self.vector * self.dtype.itemsize // self.access.bytes + 1

    def moved(self, builder: ir.IRBuilder, words: list[ir.Value], shift: ir.Value) -> list[ir.Value]:
        """The chunk's words: ``words`` from byte ``shift`` on, a 32-bit number less than the bytes of an access."""
        word = self.access.bits // 8
        for distance in (8, 4):
            if word <= distance < self.access.bytes:
                bit = builder.and_(shift, ir.Constant(I32, distance))
                far = builder.icmp_unsigned("!=", bit, ir.Constant(I32, 0))
                step = distance // word
                words = [builder.select(far, b, a) for a, b in zip(words[:-step], words[step:], strict=True)]
        needed = self.vector * self.dtype.itemsize // word
        if self.dtype.itemsize >= word:
            return words[:needed]
        bits = builder.shl(builder.and_(shift, ir.Constant(I32, 3)), ir.Constant(I32, 3))
        funnel = "shf.r.wrap.b32 $0, $1, $2, $3;"
        return [asm(builder, I32, funnel, "=r,r,r,r", [words[i], words[i + 1], bits]) for i in range(needed)]


@kernel_function
def load_across(
    p: types.Type,
    offset: types.Type,
    limit: types.Type,
    batch: types.Type,
    stride: types.Type,
    vector: types.Type,
    fill: types.Type = 0,
) -> Typed:
    """`load` of chunks that need not be aligned: ``p`` is, to an access, and ``stride`` is a multiple of ``vector``.

    Every aligned access (of a chunk's bytes, at most 16) that has an element of the chunk is read whole, so the
    elements beside the chunk must be there: from the multiple of an access before it to the one after it. The words
    are then moved down by selects and funnel shifts (``shf.r.wrap.b32``), the same way for all chunks.
    """
    dtype = check_pointer(p)
    batches, distance, width = (
        literal(a, name) for a, name in ((batch, "batch"), (stride, "stride"), (vector, "vector"))
    )
    check_index("offset", offset)
    if not is_none(limit):
        check_index("limit", limit)
    if width < 1 or width & (width - 1) or width * dtype.itemsize < 4 or batches < 1:
        raise TypingError(
            f"load_across takes chunks of a power of two of elements and at least 4 bytes, "
            f"got vector={width} of {dtype}"
        )
    if batches > 1 and distance % width:
        raise TypingError(f"load_across takes a stride that is a multiple of vector, got {distance} and {width}")
    covering = _Covering(dtype, width)
    access, size = covering.access, dtype.itemsize

    def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> ir.Value:
        bytes_before = builder.and_(builder.mul(args[1], ir.Constant(I64, size)), ir.Constant(I64, access.bytes - 1))
        base = builder.sub(element_address(builder, args[0], args[1], dtype), bytes_before)
        across = builder.icmp_unsigned("!=", bytes_before, ir.Constant(I64, 0))
        element = to_bits(builder, dtype, convert_scalar(builder, fill, args[6], dtype))
        filled = to_registers(builder, dtype, access, [element] * max(access.bits // dtype.bits, 1)) * access.count
        shift = builder.trunc(bytes_before, I32)
        loaded = []
        for b in range(batches):
            inside = None if is_none(limit) else builder.icmp_signed(">", args[2], ir.Constant(I64, b * distance))
            last = across if inside is None else builder.and_(inside, across)
            words = []
            for i in range(covering.count):
                predicate = last if i == covering.count - 1 else inside
                byte = b * distance * size + i * access.bytes
                words += load_access(builder, "ld.global", access, base, byte, predicate, filled)
            words = covering.moved(builder, words, shift)
            loaded += [(Access(access.bits, 1), [word]) for word in words]
        return assemble(builder, dtype, batches * width, loaded)

    return TileType(dtype, batches * width), emit


FUNCTIONS: tuple[KernelFunction, ...] = (load_across,)
