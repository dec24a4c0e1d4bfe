# SPDX-License-Identifier: Apache-2.0
"""One memory access: ``ld`` and ``st`` of up to 16 bytes in any state space, and the registers they move (PTX ISA
``ld``, ``st``).

A limited load is one string that first moves the fill into the registers and then loads under a predicate, so that
the loads of a tile stay back to back.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
from llvmlite import ir

from fusedsl.numba_cuda.convert import asm, from_bits, tile_words, to_bits
from fusedsl.numba_cuda.dtypes import DType
from fusedsl.numba_cuda.tile import I16, I32, I64, TileType, build_vector, element_type, elements, is_packed

_LETTER = {16: "h", 32: "r", 64: "l"}


@attrs.frozen
class Access:
    """One vector access: ``count`` registers of ``bits`` bits each.

    An access never splits an element over registers, and packs several narrow elements into a register where the
    bytes allow.
    """

    bits: int
    count: int

    @property
    def bytes(self) -> int:
        return self.bits // 8 * self.count

    @property
    def suffix(self) -> str:
        """Instruction suffix, for example ``.v4.b32``."""
        return (f".v{self.count}" if self.count > 1 else "") + f".b{self.bits}"

    @property
    def register(self) -> ir.IntType:
        """Register type: bytes travel in 16-bit registers."""
        return ir.IntType(max(self.bits, 16))

    @property
    def letter(self) -> str:
        return _LETTER[max(self.bits, 16)]


def split_bytes(size: int, itemsize: int) -> list[Access]:
    """Accesses that cover ``size`` contiguous bytes, each aligned to its own size when the first byte is aligned to
    the largest power of two (at most 16) that divides ``size``."""
    step = min(size & -size, 16)
    if step >= 8 and itemsize == 8:
        access = Access(64, step // 8)
    elif step >= 4:
        access = Access(32, step // 4)
    else:
        access = Access(step * 8, 1)
    return [access] * (size // step)


def braces(operands: Sequence[str]) -> str:
    """``{$0,$1}``, or ``$0`` when there is one."""
    return operands[0] if len(operands) == 1 else "{" + ",".join(operands) + "}"


def _to_pieces(builder: ir.IRBuilder, dtype: DType, access: Access, registers: list[ir.Value]) -> list[ir.Value]:
    """Register values -> integers of ``dtype.bits`` each, in memory order."""
    if access.bits <= dtype.bits:
        return [builder.trunc(r, ir.IntType(dtype.bits)) if access.bits < 16 else r for r in registers]
    pieces = []
    for register in registers:
        for shift in range(0, access.bits, dtype.bits):
            moved = builder.lshr(register, ir.Constant(register.type, shift)) if shift else register
            pieces.append(builder.trunc(moved, ir.IntType(dtype.bits)))
    return pieces


def to_registers(builder: ir.IRBuilder, dtype: DType, access: Access, pieces: list[ir.Value]) -> list[ir.Value]:
    if access.bits <= dtype.bits:
        return [builder.zext(p, I16) if access.bits < 16 else p for p in pieces]
    per = access.bits // dtype.bits
    registers = []
    for start in range(0, len(pieces), per):
        register = builder.zext(pieces[start], access.register)
        for k in range(1, per):
            wide = builder.zext(pieces[start + k], access.register)
            register = builder.or_(register, builder.shl(wide, ir.Constant(access.register, k * dtype.bits)))
        registers.append(register)
    return registers


def assemble(builder: ir.IRBuilder, dtype: DType, n: int, loaded: list[tuple[Access, list[ir.Value]]]) -> ir.Value:
    """The tile of n elements that a sequence of loaded accesses holds."""
    if is_packed(dtype, n) and all(access.bits == 32 for access, _ in loaded):
        return build_vector(builder, I32, [register for _, registers in loaded for register in registers])
    pieces = [piece for access, registers in loaded for piece in _to_pieces(builder, dtype, access, registers)]
    values = [from_bits(builder, dtype, piece) for piece in pieces]
    if not is_packed(dtype, n):
        return build_vector(builder, element_type(dtype), values)
    pair = Access(32, 1)
    words = [word for i in range(0, n, 2) for word in to_registers(builder, dtype, pair, values[i : i + 2])]
    return build_vector(builder, I32, words)


def disassemble(
    builder: ir.IRBuilder, tile: TileType, vector: ir.Value, accesses: Sequence[Access]
) -> list[list[ir.Value]]:
    """Register values of each access of a tile to be stored."""
    words, bits = tile_words(builder, tile, vector)
    groups = []
    if bits == 32 and all(access.bits == 32 for access in accesses):
        start = 0
        for access in accesses:
            groups.append(words[start : start + access.count])
            start += access.count
        return groups
    pieces = [to_bits(builder, tile.dtype, value) for value in elements(builder, tile, vector)]
    start = 0
    for access in accesses:
        stop = start + access.bytes // tile.dtype.itemsize
        groups.append(to_registers(builder, tile.dtype, access, pieces[start:stop]))
        start = stop
    return groups


def load_access(
    builder: ir.IRBuilder,
    space: str,
    access: Access,
    address: ir.Value,
    immediate: int,
    predicate: ir.Value | None = None,
    fill: Sequence[ir.Value] = (),
) -> list[ir.Value]:
    """One load; where the predicate is false, the registers are ``fill``.

    Args:
        space: instruction up to the vector suffix, for example ``ld.global``.
        address: 64-bit (global) or 32-bit (shared) address.
        immediate: bytes added to it.
        predicate: i1, or None to load always.
        fill: one value a register.
    """
    count = access.count
    result = access.register if count == 1 else ir.LiteralStructType([access.register] * count)
    outputs = [f"${i}" for i in range(count)]
    where = f"[${count}+{immediate}]" if immediate else f"[${count}]"
    text = f"{space}{access.suffix} {braces(outputs)}, {where};"
    address_letter = "l" if address.type == I64 else "r"
    if predicate is None:
        constraints = ",".join([f"={access.letter}"] * count + [address_letter])
        value = asm(builder, result, text, constraints, [address], effect=True)
    else:
        width = max(access.bits, 16)
        moves = " ".join(f"mov.b{width} ${i}, ${count + 2 + i};" for i in range(count))
        constraints = ",".join([f"=&{access.letter}"] * count + [address_letter, "b"] + [access.letter] * count)
        text = f"{moves} @${count + 1} {text}"
        value = asm(builder, result, text, constraints, [address, predicate, *fill], effect=True)
    return [value] if count == 1 else [builder.extract_value(value, i) for i in range(count)]


def store_access(
    builder: ir.IRBuilder,
    space: str,
    access: Access,
    address: ir.Value,
    immediate: int,
    registers: Sequence[ir.Value],
    predicate: ir.Value | None = None,
) -> None:
    """One store, skipped where the predicate is false; ``space`` as in `load_access`."""
    count = access.count
    where = f"[$0+{immediate}]" if immediate else "[$0]"
    text = f"{space}{access.suffix} {where}, {braces([f'${i + 1}' for i in range(count)])};"
    letters = ["l" if address.type == I64 else "r"] + [access.letter] * count
    args = [address, *registers]
    if predicate is not None:
        text = f"@${count + 1} {text}"
        letters.append("b")
        args.append(predicate)
    asm(builder, ir.VoidType(), text, ",".join(letters), args, effect=True)
