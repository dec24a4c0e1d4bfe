# SPDX-License-Identifier: Apache-2.0
"""Copies between global and shared memory that run beside the threads: ``cp.async`` a thread (PTX ISA ``cp.async``)
and bulk copies through the copy engine (``cp.async.bulk``, sm_90)."""

from __future__ import annotations

import attrs
from llvmlite import ir
from numba.cuda import types
from numba.cuda.core.errors import TypingError

from fusedsl.numba_cuda.convert import asm
from fusedsl.numba_cuda.dtypes import DType
from fusedsl.numba_cuda.intrinsics.barrier import statement
from fusedsl.numba_cuda.intrinsics.mbarrier import check_mbarriers, mbarrier_address
from fusedsl.numba_cuda.intrinsics.memory import Place, check_index, check_pointer, element_address
from fusedsl.numba_cuda.intrinsics.shared import check_array, check_int, narrow, shared_address
from fusedsl.numba_cuda.registry import KernelFunction, Typed, is_none, kernel_function, literal
from fusedsl.numba_cuda.tile import I32, I64

_MAX_ACCESS = 16


def _same_dtype(name: str, s: types.Type, p: types.Type) -> DType:
    dtype = check_array(s)
    if check_pointer(p) != dtype:
        raise TypingError(f"{name} between {s} and {p}: the dtypes differ")
    return dtype


@kernel_function
def async_copy(
    s: types.Type,
    index: types.Type,
    p: types.Type,
    offset: types.Type,
    limit: types.Type,
    batch: types.Type,
    stride: types.Type,
    vector: types.Type,
) -> Typed:
    """Begin copying ``batch`` chunks of ``vector`` elements: chunk b goes from ``p[offset + b*stride]`` to
    ``s[index + b*stride]``; zeros where ``b*stride >= limit`` (``limit`` None: nowhere).

    ``cp.async.cg.shared.global [dst], [src], 16{, ignore-src}`` for accesses of 16 bytes, ``cp.async.ca`` for 4 and 8;
    both addresses aligned to the access (PTX ISA ``cp.async``, sm_80). The elements are there after `async_commit` and
    `async_wait` of this thread; other threads need a `barrier` as well.
    """
    dtype = _check_copy("async_copy", s, index, p, offset, limit)
    distance = literal(stride, "stride")
    copies = _Copies(dtype, literal(batch, "batch"), distance, distance, distance, literal(vector, "vector"))

    def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> None:
        copies.emit(builder, args[:4], None if is_none(limit) else args[4], None)

    return types.none, emit


@kernel_function
def async_copy_strided(
    s: types.Type,
    index: types.Type,
    stride: types.Type,
    p: types.Type,
    offset: types.Type,
    limit: types.Type,
    batch: types.Type,
    step: types.Type,
    batch_stride: types.Type,
    vector: types.Type,
) -> Typed:
    """`async_copy` where the two sides have strides of their own: chunk b goes from ``p[offset + b*batch_stride]`` to
    ``s[index + b*stride]``; zeros where ``b*step >= limit``. ``batch_stride`` is an int known at run time or a literal.
    """
    dtype = _check_copy("async_copy_strided", s, index, p, offset, limit)
    check_index("batch_stride", batch_stride)
    known = int(batch_stride.literal_value) if isinstance(batch_stride, types.Literal) else None
    lits = [literal(a, name) for a, name in ((batch, "batch"), (stride, "stride"), (step, "step"), (vector, "vector"))]
    copies = _Copies(dtype, lits[0], lits[1], lits[2], known, lits[3])

    def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> None:
        operands = [args[0], args[1], args[3], args[4]]
        copies.emit(builder, operands, None if is_none(limit) else args[5], args[8])

    return types.none, emit


def _check_copy(
    name: str, s: types.Type, index: types.Type, p: types.Type, offset: types.Type, limit: types.Type
) -> DType:
    """Check the arguments that both copies share; the dtype."""
    dtype = _same_dtype(name, s, p)
    check_int("index", index)
    check_index("offset", offset)
    if not is_none(limit):
        check_index("limit", limit)
    return dtype


@attrs.frozen
class _Copies:
    """``batch`` chunks of a thread: strides in elements, that of global memory None where known only at run time."""

    dtype: DType
    batch: int
    stride: int
    step: int
    batch_stride: int | None
    vector: int

    def __attrs_post_init__(self) -> None:
        if self.vector * self.dtype.itemsize < 4 or self.vector & (self.vector - 1) or self.batch < 1:
            raise TypingError(
                "async_copy takes chunks of a power of two of elements and at least 4 bytes, got "
                f"vector={self.vector} of {self.dtype}"
            )

    def emit(
        self, builder: ir.IRBuilder, operands: list[ir.Value], limit: ir.Value | None, batch_stride: ir.Value | None
    ) -> None:
        """The instructions; ``operands`` are array, index, pointer and offset."""
        itemsize = self.dtype.itemsize
        size = self.vector * itemsize
        access = min(size, _MAX_ACCESS)
        instruction = f"cp.async.{'cg' if access == _MAX_ACCESS else 'ca'}.shared.global"
        to = shared_address(builder, operands[0], operands[1], itemsize)
        start = Place(element_address(builder, operands[2], operands[3], self.dtype))
        for b in range(self.batch):
            source = start.moved(builder, b, batch_stride, self.batch_stride, itemsize)
            values, constraints, ignore = [to, source.base], "r,l,~{memory}", ""
            if limit is not None:
                values.append(builder.icmp_signed("<=", limit, ir.Constant(I64, b * self.step)))
                constraints, ignore = "r,l,b,~{memory}", ", $2"
            for part in range(0, size, access):
                byte = b * self.stride * itemsize + part
                text = f"{instruction} [$0+{byte}], [$1+{source.byte + part}], {access}{ignore};"
                asm(builder, ir.VoidType(), text, constraints, values, effect=True)


@kernel_function
def async_commit() -> Typed:
    """Close a group of this thread's copies since the last one (``cp.async.commit_group``)."""
    return types.none, statement("cp.async.commit_group;", convergent=False)


@kernel_function
def async_wait(n: types.Type) -> Typed:
    """Wait until at most the n newest groups of this thread are pending (``cp.async.wait_group n``)."""
    return types.none, statement(f"cp.async.wait_group {_count('async_wait', n)};", convergent=False)


def _count(name: str, n: types.Type) -> int:
    count = literal(n, "n")
    if not isinstance(count, int) or count < 0:
        raise TypingError(f"{name} takes a number of groups, not {count}")
    return count


@kernel_function
def bulk_load(
    s: types.Type,
    index: types.Type,
    p: types.Type,
    offset: types.Type,
    count: types.Type,
    m: types.Type,
    i: types.Type,
) -> Typed:
    """Begin copying ``p[offset : offset + count]`` to ``s[index]`` on; by one thread. The bytes and both addresses are
    multiples of 16; they count down what mbarrier i expects.

    ``cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [dst], [src], size, [mbar]`` (PTX ISA
    ``cp.async.bulk``, sm_90).
    """
    dtype = _same_dtype("bulk_load", s, p)
    check_mbarriers(m)
    for name, argument in (("index", index), ("offset", offset), ("count", count), ("i", i)):
        check_int(name, argument)

    def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> None:
        operands = [
            shared_address(builder, args[0], args[1], dtype.itemsize),
            element_address(builder, args[2], args[3], dtype),
            _bytes(builder, args[4], dtype),
            mbarrier_address(builder, args[5], args[6]),
        ]
        text = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];"
        asm(builder, ir.VoidType(), text, "r,l,r,r,~{memory}", operands, effect=True)

    return types.none, emit


def _bytes(builder: ir.IRBuilder, count: ir.Value, dtype: DType) -> ir.Value:
    return builder.mul(narrow(builder, count), ir.Constant(I32, dtype.itemsize))


@kernel_function
def bulk_store(p: types.Type, offset: types.Type, s: types.Type, index: types.Type, count: types.Type) -> Typed:
    """Begin copying ``s[index : index + count]`` to ``p[offset]`` on; by one thread. The bytes and both addresses are
    multiples of 16.

    ``cp.async.bulk.global.shared::cta.bulk_group [dst], [src], size`` (PTX ISA ``cp.async.bulk``, sm_90). Before it,
    every thread that wrote those elements runs `async_fence`, then a `barrier`; after it, `bulk_commit` and
    `bulk_wait` by the same thread.
    """
    dtype = _same_dtype("bulk_store", s, p)
    for name, argument in (("index", index), ("offset", offset), ("count", count)):
        check_int(name, argument)

    def emit(builder: ir.IRBuilder, args: list[ir.Value]) -> None:
        operands = [
            element_address(builder, args[0], args[1], dtype),
            shared_address(builder, args[2], args[3], dtype.itemsize),
            _bytes(builder, args[4], dtype),
        ]
        text = "cp.async.bulk.global.shared::cta.bulk_group [$0], [$1], $2;"
        asm(builder, ir.VoidType(), text, "l,r,r,~{memory}", operands, effect=True)

    return types.none, emit


@kernel_function
def bulk_commit() -> Typed:
    """Close a group of this thread's bulk stores since the last one (``cp.async.bulk.commit_group``)."""
    return types.none, statement("cp.async.bulk.commit_group;", convergent=False)


@kernel_function
def bulk_wait(n: types.Type) -> Typed:
    """Wait until at most the n newest groups of this thread's bulk stores still read shared memory
    (``cp.async.bulk.wait_group.read n``): the others' elements may be overwritten, and the block may end."""
    return types.none, statement(f"cp.async.bulk.wait_group.read {_count('bulk_wait', n)};", convergent=False)


@kernel_function
def async_fence() -> Typed:
    """Make this thread's writes to shared memory visible to bulk copies issued after a following barrier
    (``fence.proxy.async.shared::cta``, sm_90)."""
    return types.none, statement("fence.proxy.async.shared::cta;", convergent=False)


FUNCTIONS: tuple[KernelFunction, ...] = (
    async_copy,
    async_copy_strided,
    async_commit,
    async_wait,
    bulk_load,
    bulk_store,
    bulk_commit,
    bulk_wait,
    async_fence,
)
