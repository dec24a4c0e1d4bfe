# SPDX-License-Identifier: Apache-2.0
"""Atomic operations on global memory (PTX ISA ``atom``)."""

from __future__ import annotations

from llvmlite import ir
from numba.cuda import types
from numba.cuda.core.errors import TypingError

from fusedsl.numba_cuda.convert import asm, operand
from fusedsl.numba_cuda.registry import KernelFunction, Typed, kernel_function
from fusedsl.numba_cuda.tile import I64, PointerType, element_type, vector_lanes

_KINDS = {
    "int32": ("u32", "r"),
    "uint32": ("u32", "r"),
    "int64": ("u64", "l"),
    "uint64": ("u64", "l"),
    "float32": ("f32", "f"),
    "float64": ("f64", "d"),
}


@kernel_function
def atomic_add(p: types.Type, index: types.Type, value: types.Type) -> Typed:
    """``p[index] += value`` in one step; returns the old value as a number (int for integers).

    ``atom.global.add``, relaxed: order other accesses with `fence_gpu`. dtypes: int32, uint32, int64, uint64,
    float32, float64.
    """
    if not isinstance(p, PointerType) or p.dtype.name not in _KINDS:
        raise TypingError(f"atomic_add takes a pointer to one of {', '.join(_KINDS)}, not {p}")
    plain = types.unliteral(index)
    if not isinstance(plain, types.Integer) or plain.bitwidth != 64:
        raise TypingError(f"atomic_add: the index must be an int, not {index}")
    dtype = p.dtype
    suffix, letter = _KINDS[dtype.name]

    def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> ir.Value:
        address = builder.add(args[0], builder.mul(args[1], ir.Constant(I64, dtype.itemsize)))
        (amount,) = vector_lanes(builder, operand(builder, value, args[2], dtype, 1))
        text = f"atom.global.add.{suffix} $0, [$1], $2;"
        constraints = f"={letter},l,{letter},~{{memory}}"
        old = asm(builder, element_type(dtype), text, constraints, [address, amount], effect=True)
        if dtype.is_float or dtype.bits == 64:
            return old
        return builder.sext(old, I64) if dtype.kind == "int" else builder.zext(old, I64)

    if dtype.is_float:
        return (types.float32 if dtype.bits == 32 else types.float64), emit
    return types.int64, emit


FUNCTIONS: tuple[KernelFunction, ...] = (atomic_add,)
