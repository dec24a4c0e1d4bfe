# SPDX-License-Identifier: Apache-2.0
"""Where a thread stands: special registers, lane and warp numbers, unsigned index arithmetic (PTX ISA, special
registers)."""

from __future__ import annotations

from llvmlite import ir
from numba.cuda import types
from numba.cuda.core.errors import TypingError

from fusedsl.numba_cuda.convert import common_tile, operand
from fusedsl.numba_cuda.registry import KernelFunction, Lower, Typed, kernel_function
from fusedsl.numba_cuda.tile import I32, I64, TileType


def _read(builder: ir.IRBuilder, register: str) -> ir.Value:
    """A special register such as ``tid.x``, 32 bits."""
    name = f"llvm.nvvm.read.ptx.sreg.{register}"
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(I32, []), name)
    return builder.call(function, [])


def _special(register: str) -> Lower:
    return lambda builder, _: builder.zext(_read(builder, register), I64)


@kernel_function
def thread_x() -> Typed:
    """Index of the thread in its block, x (int64)."""
    return types.int64, _special("tid.x")


@kernel_function
def thread_y() -> Typed:
    """Index of the thread in its block, y (int64)."""
    return types.int64, _special("tid.y")


@kernel_function
def thread_z() -> Typed:
    """Index of the thread in its block, z (int64)."""
    return types.int64, _special("tid.z")


@kernel_function
def block_x() -> Typed:
    """Index of the block in the grid, x (int64)."""
    return types.int64, _special("ctaid.x")


@kernel_function
def block_y() -> Typed:
    """Index of the block in the grid, y (int64)."""
    return types.int64, _special("ctaid.y")


@kernel_function
def block_z() -> Typed:
    """Index of the block in the grid, z (int64)."""
    return types.int64, _special("ctaid.z")


@kernel_function
def grid_x() -> Typed:
    """Blocks of the grid in x (int64)."""
    return types.int64, _special("nctaid.x")


@kernel_function
def grid_y() -> Typed:
    """Blocks of the grid in y (int64)."""
    return types.int64, _special("nctaid.y")


@kernel_function
def grid_z() -> Typed:
    """Blocks of the grid in z (int64)."""
    return types.int64, _special("nctaid.z")


def _linear_thread(builder: ir.IRBuilder) -> ir.Value:
    x, y, z = (_read(builder, f"tid.{axis}") for axis in "xyz")
    width, height = (_read(builder, f"ntid.{axis}") for axis in "xy")
    return builder.add(x, builder.mul(width, builder.add(y, builder.mul(height, z))))


@kernel_function
def lane() -> Typed:
    """Lane of the thread in its warp, 0 to 31 (int64)."""
    return types.int64, lambda builder, _: builder.zext(_read(builder, "laneid"), I64)


@kernel_function
def warp() -> Typed:
    """Warp of the thread in its block: the linear thread id x + y*dim_x + z*dim_x*dim_y, divided by 32 (int64)."""
    return types.int64, lambda builder, _: builder.zext(builder.lshr(_linear_thread(builder), ir.Constant(I32, 5)), I64)


def _unsigned(name: str, instruction: str, width: ir.IntType, a: types.Type, b: types.Type) -> Typed:
    if isinstance(a, TileType) or isinstance(b, TileType):
        tile = common_tile(name, a, b)
        if not tile.dtype.is_integer:
            raise TypingError(f"{name} takes integers, not {tile}")

        def emit_tile(builder: ir.IRBuilder, args: list[ir.Value]) -> ir.Value:
            x, y = (operand(builder, t, v, tile.dtype, tile.n) for t, v in zip((a, b), args, strict=True))
            return getattr(builder, instruction)(x, y)

        return tile, emit_tile

    def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> ir.Value:
        x, y = (builder.trunc(v, width) if width == I32 else v for v in args)
        result = getattr(builder, instruction)(x, y)
        return builder.zext(result, I64) if width == I32 else result

    for argument in (a, b):
        plain = types.unliteral(argument)
        if not isinstance(plain, types.Integer) or plain.bitwidth != 64:
            raise TypingError(f"{name} takes integers, not {argument}")
    return types.int64, emit


@kernel_function
def udiv(a: types.Type, b: types.Type) -> Typed:
    """Unsigned quotient: 64 bits for ints, a tile's own width for integer tiles."""
    return _unsigned("udiv", "udiv", I64, a, b)


@kernel_function
def umod(a: types.Type, b: types.Type) -> Typed:
    """Unsigned remainder: 64 bits for ints, a tile's own width for integer tiles."""
    return _unsigned("umod", "urem", I64, a, b)


@kernel_function
def udiv32(a: types.Type, b: types.Type) -> Typed:
    """Unsigned quotient of operands known to fit 31 bits: a short sequence instead of a 64-bit division."""
    return _unsigned("udiv32", "udiv", I32, a, b)


@kernel_function
def umod32(a: types.Type, b: types.Type) -> Typed:
    """Unsigned remainder of operands known to fit 31 bits."""
    return _unsigned("umod32", "urem", I32, a, b)


FUNCTIONS: tuple[KernelFunction, ...] = (
    thread_x,
    thread_y,
    thread_z,
    block_x,
    block_y,
    block_z,
    grid_x,
    grid_y,
    grid_z,
    lane,
    warp,
    udiv,
    umod,
    udiv32,
    umod32,
)
