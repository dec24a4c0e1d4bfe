# SPDX-License-Identifier: Apache-2.0
"""Planted faults: the interpreter finds each and names kernel line, thread and block."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fusedsl.graph.span import FuseError
from fusedsl.numba_cuda.interpreter import poison, settle
from fusedsl.numba_cuda.interpreter.errors import (
    AbsentLane,
    Deadlock,
    GlobalRace,
    InvalidOperand,
    KernelCrash,
    KernelFault,
    MisalignedAccess,
    OutOfBounds,
    SharedRace,
    TileMismatch,
    UninitializedRead,
    UnwrittenOutput,
)
from tests.numba_cuda.interpreter.support import fault_text, run_body


def test_every_fault_is_a_fuse_error() -> None:
    assert issubclass(KernelFault, FuseError)


def test_out_of_bounds_read() -> None:
    text = fault_text(
        OutOfBounds,
        """
        # norms.py:7  y = x + 1
        t = load(x, thread_x() * 4, None, 1, 4, 4, 0.0)
        """,
        {"x": torch.zeros(12)},
        threads=4,
        grid=(2, 1, 1),
    )
    assert text == (
        "OutOfBounds: load touches elements 12 to 15 of x\n"
        "  <kernel>:5:8\n"
        "    t = load(x, thread_x() * 4, None, 1, 4, 4, 0.0)\n"
        "        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "  expected: offsets 0 to 11\n"
        "  in thread (3, 0, 0) of block (0, 0, 0)\n"
        "  made from norms.py:7  y = x + 1"
    )


def test_out_of_bounds_of_a_later_chunk_and_below_zero() -> None:
    text = fault_text(OutOfBounds, "load(x, 0, None, 4, 4, 2, 0.0)", {"x": torch.zeros(13)})
    assert "load touches elements 0 to 1 and 3 more chunks, 4 elements apart, of x" in text
    assert "element -1 of x" in fault_text(OutOfBounds, "load(x, -1, None, 1, 1, 1)", {"x": torch.zeros(4)})


def test_load_across_touches_whole_accesses() -> None:
    x = torch.zeros(14)
    run_body("load_across(x, 4, None, 1, 1, 8)", {"x": x})
    assert "load_across touches element 15 of x" in fault_text(
        OutOfBounds, "load_across(x, 5, None, 1, 1, 8)", {"x": x}
    )
    assert "load_across by 16 bytes" in fault_text(MisalignedAccess, "load_across(x, 2, None, 1, 1, 4)", {"x": x[1:]})
    assert "multiple of vector" in fault_text(InvalidOperand, "load_across(x, 0, None, 2, 6, 4)", {"x": x})


def test_join_and_take_of_what_does_not_fit() -> None:
    x, y = torch.zeros(4), torch.zeros(4, dtype=torch.int32)
    body = "join(load(x, 0, None, 1, 1, 4), load(y, 0, None, 1, 1, 4))"
    assert "two tiles of one dtype" in fault_text(TileMismatch, body, {"x": x, "y": y})
    assert "elements 3 to 4 of a tile of 4" in fault_text(
        TileMismatch, "take(load(x, 0, None, 1, 1, 4), 3, 2)", {"x": x}
    )


def test_out_of_bounds_store_gather_scatter_atomic_and_empty_tensor() -> None:
    x = torch.zeros(8, dtype=torch.int32)
    one = "full(1, 1, int32)"
    assert "store touches element 8 of x" in fault_text(OutOfBounds, f"store(x, 8, None, {one}, 1, 1, 1)", {"x": x})
    assert "gather touches element 9 of x" in fault_text(
        OutOfBounds, "gather(x, iota(2, 9, 1, int64), None, 0)", {"x": x}
    )
    assert "scatter touches element 9 of x" in fault_text(
        OutOfBounds, f"scatter(x, iota(2, 9, 1, int64), None, {one})", {"x": x}
    )
    assert "atomic_add touches element 8 of x" in fault_text(OutOfBounds, "atomic_add(x, 8, 1)", {"x": x})
    assert "the tensor is empty" in fault_text(OutOfBounds, "load(x, 0, None, 1, 1, 1)", {"x": x[:0]})


def test_strided_tensor_is_legal_in_its_span_only() -> None:
    base = torch.arange(100.0)
    x = base[10:50:4]  # elements 0, 4 ... 36 of its own memory
    out = torch.zeros(1)
    run_body("store(out, 0, None, load(x, 36, None, 1, 1, 1), 1, 1, 1)", {"x": x, "out": out})
    assert out.item() == 46.0
    assert "expected: offsets 0 to 36" in fault_text(OutOfBounds, "load(x, 37, None, 1, 1, 1)", {"x": x})


def test_misaligned_vector_access() -> None:
    text = fault_text(
        MisalignedAccess, "v = load(x, 2, None, 1, 8, 8, 0.0)", {"x": torch.zeros(64, dtype=torch.bfloat16)}
    )
    assert text == (
        "MisalignedAccess: load by 16 bytes at elements 2 to 9 of x: the address is 4 and the stride 0 bytes past a "
        "multiple of 16\n"
        "  <kernel>:4:8\n"
        "    v = load(x, 2, None, 1, 8, 8, 0.0)\n"
        "        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "  expected: addresses that are multiples of 16 bytes\n"
        "  in thread (0, 0, 0) of block (0, 0, 0)"
    )


def test_misaligned_tensor_stride_and_chunk_size() -> None:
    x = torch.zeros(64)
    assert "the address is 4" in fault_text(MisalignedAccess, "load(x, 0, None, 1, 4, 4)", {"x": x[1:]})
    assert "the stride 8 bytes" in fault_text(MisalignedAccess, "load(x, 0, None, 2, 6, 4)", {"x": x})
    assert "load by 16 bytes" in fault_text(MisalignedAccess, "load(x, 2, None, 1, 8, 8)", {"x": x})
    run_body("load(x, 4, None, 1, 8, 8)\nload(x, 2, None, 1, 6, 6)", {"x": x})


def test_strided_access_is_a_vector_only_with_a_literal_stride() -> None:
    x = torch.zeros(64)
    run_body("load_strided(x, 1, None, 2, 1, 9, 4, n)", {"x": x, "n": 1})
    run_body("store_strided(x, 1, None, 1.0, 2, 1, 9, 4, n)", {"x": x, "n": 1})
    for literal in ("1", "ONE", "element_stride=1"):
        body = f"load_strided(x, 1, None, 2, 1, 9, 4, {literal})"
        text = fault_text(MisalignedAccess, body, {"x": x}, constants="ONE = 1")
        assert "load_strided by 16 bytes at elements 1 to 4 and 1 more chunk, 9 elements apart, of x" in text
    body = "store_strided(x, 4, None, 1.0, 2, 1, 9, 4, 1)"
    assert "the address is 0 and the stride 4 bytes past" in fault_text(MisalignedAccess, body, {"x": x})
    text = fault_text(OutOfBounds, "load_strided(x, 0, None, 2, 1, 30, 4, 20)", {"x": x})
    assert "load_strided touches elements 0 to 60 by 20 and 1 more chunk, 30 elements apart, of x" in text


def test_missing_barrier() -> None:
    text = fault_text(
        SharedRace,
        """
        s = shared(float32, 64)
        shared_store(s, thread_x(), full(1, 1.0, float32))
        v = shared_load(s, max(thread_x() - 1, 0), 1)
        """,
        {},
        threads=64,
    )
    assert text == (
        "SharedRace: shared_load reads element 0 of shared(float32, 64) with no barrier after thread (0, 0, 0) at "
        "line 5: shared_store(s, thread_x(), full(1, 1.0, float32))\n"
        "  <kernel>:6:8\n"
        "    v = shared_load(s, max(thread_x() - 1, 0), 1)\n"
        "        ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
        "  try: barrier() between the two\n"
        "  in thread (1, 0, 0) of block (0, 0, 0)"
    )


def test_write_after_read_needs_a_barrier() -> None:
    body = """
        s = shared(float32, 2)
        if thread_x() == 0:
            shared_store(s, 0, full(2, 1.0, float32))
        barrier()
        v = shared_load(s, 0, 2)
        {between}
        if thread_x() == 62:
            shared_store(s, 0, full(2, 2.0, float32))
        """
    text = fault_text(SharedRace, body.format(between=""), {}, threads=64)
    assert (
        "shared_store overwrites element 0 of shared(float32, 2) with no barrier after threads of several warps" in text
    )
    run_body(body.format(between="barrier()"), {}, threads=64)


def test_two_writers_of_one_shared_element() -> None:
    text = fault_text(SharedRace, "shared_store(shared(int32, 1), 0, full(1, 1, int32))", {}, threads=2)
    assert "shared_store overwrites element 0 of shared(int32, 1) with no barrier after thread (0, 0, 0)" in text


def test_what_orders_the_lanes_of_a_warp() -> None:
    write_read = """
        s = shared(int32, 32)
        v = full(1, lane(), int32)
        shared_store(s, lane(), v)
        {between}
        w = shared_load(s, 31 - lane(), 1)
        """
    text = fault_text(SharedRace, write_read.format(between="v = warp_sum(v, 32)"), {}, threads=32)
    assert "shared_load reads element 0 of shared(int32, 32) with no barrier after thread (0, 0, 0)" in text
    run_body(write_read.format(between="warp_barrier()"), {}, threads=32)
    read_write = """
        s = shared(int32, 1)
        if lane() == 0:
            shared_store(s, 0, full(1, 5, int32))
        warp_barrier()
        v = shared_load(s, 0, 1)
        {between}
        if lane() == 3:
            shared_store(s, 0, v)
        """
    text = fault_text(SharedRace, read_write.format(between=""), {}, threads=32)
    assert (
        "shared_store overwrites element 0 of shared(int32, 1) with no barrier after several threads of warp 0" in text
    )
    run_body(read_write.format(between="v = warp_sum(v, 32)"), {}, threads=32)


def test_a_warp_barrier_does_not_order_other_warps() -> None:
    body = """
        s = shared(int32, 64)
        shared_store(s, thread_x(), full(1, 1, int32))
        warp_barrier()
        if thread_x() >= 32:
            v = shared_load(s, thread_x() - 32, 1)
        """
    text = fault_text(SharedRace, body, {}, threads=64)
    assert "reads element 31 of shared(int32, 64) with no barrier after thread (31, 0, 0)" in text


def test_deadlock_names_who_waits_where() -> None:
    text = fault_text(
        Deadlock,
        """
        # norms.py:9  s = x.sum()
        if thread_x() < 32:
            barrier()
        elif thread_x() < 40:
            v = warp_sum(full(1, 1.0, float32), 32)
        """,
        {},
        threads=64,
    )
    assert text == (
        "Deadlock: threads of block (0, 0, 0) wait for others that will never come\n"
        "    32 threads (0 to 31) wait at barrier, line 6: barrier()\n"
        "    8 threads (32 to 39) wait at warp_sum, line 8: v = warp_sum(full(1, 1.0, float32), 32)\n"
        "    24 threads (40 to 63) have returned\n"
        "  <kernel>:6:8\n"
        "    barrier()\n"
        "    ^^^^^^^^^\n"
        "  expected: every thread of the group at the same barrier or collective\n"
        "  made from norms.py:9  s = x.sum()"
    )


def test_barriers_at_different_lines_do_not_meet() -> None:
    text = fault_text(
        Deadlock,
        """
        if thread_x() % 2 == 0:
            barrier()
        else:
            barrier()
        """,
        {},
        threads=4,
    )
    assert "2 threads (0, 2) wait at barrier, line 5" in text
    assert "2 threads (1, 3) wait at barrier, line 7" in text


def test_collectives_at_different_lines_do_not_meet() -> None:
    body = """
        v = full(1, 1.0, float32)
        if lane() < 16:
            v = warp_sum(v, 16)
        else:
            v = warp_sum(v, 16)
        """
    text = fault_text(Deadlock, body, {}, threads=32)
    assert "16 threads (0 to 15) wait at warp_sum, line 6" in text
    assert "16 threads (16 to 31) wait at warp_sum, line 8" in text


def test_a_launch_after_a_deadlock_runs() -> None:
    fault_text(Deadlock, "if thread_x() == 0:\n    barrier()", {}, threads=64)
    out = torch.zeros(64, dtype=torch.int64)
    run_body("barrier()\nstore(out, thread_x(), None, full(1, thread_x(), int64), 1, 1, 1)", {"out": out}, threads=64)
    assert out.tolist() == list(range(64))


def test_read_of_unwritten_shared_memory() -> None:
    text = fault_text(
        UninitializedRead,
        """
        s = shared(float32, 8)
        if thread_x() == 0:
            shared_store(s, 0, full(4, 1.0, float32))
        barrier()
        v = shared_load(s, 0, 8)
        """,
        {},
        threads=2,
    )
    assert text == (
        "UninitializedRead: shared_load reads element 4 of shared(float32, 8), which nobody has written\n"
        "  <kernel>:8:8\n"
        "    v = shared_load(s, 0, 8)\n"
        "        ^^^^^^^^^^^^^^^^^^^^\n"
        "  try: barrier() before the read, if another thread is to write it\n"
        "  in thread (1, 0, 0) of block (0, 0, 0)"
    )


def test_shared_memory_is_fresh_in_every_block() -> None:
    body = """
        s = shared(float32, 1)
        if block_x() == 0:
            shared_store(s, 0, full(1, 1.0, float32))
        v = shared_load(s, 0, 1)
        """
    text = fault_text(UninitializedRead, body, {}, grid=(2, 1, 1))
    assert "of block (1, 0, 0)" in text


def test_shared_bounds_and_alignment() -> None:
    assert "shared_store touches element 4 of shared(float32, 4)" in fault_text(
        OutOfBounds, "shared_store(shared(float32, 4), 4, full(1, 0.0, float32))", {}
    )
    text = fault_text(MisalignedAccess, "shared_store(shared(float32, 16), 2, full(4, 0.0, float32))", {})
    assert "shared_store by 16 bytes at elements 2 to 5 of shared(float32, 16): the offset is 8 bytes past" in text
    assert "at most" in fault_text(InvalidOperand, "shared(float64, 8192)", {})


def test_read_of_an_unwritten_output() -> None:
    out = torch.empty(8)
    poison(out)
    assert torch.isnan(out).all()
    body = "store(out, 0, None, full(4, 1.0, float32), 1, 4, 4)\nv = load(out, 4 - BACK, None, 1, 1, 1)"
    text = fault_text(UninitializedRead, body, {"out": out}, constants="BACK = 0")
    assert "load reads element 4 of out, which nobody has written" in text
    run_body(body, {"out": out}, constants="BACK = 1")
    text = fault_text(UninitializedRead, "gather(out, iota(2, 5, 1, int32), None, 0.0)", {"out": out})
    assert "gather reads element 5 of out" in text


def test_unwritten_output_elements() -> None:
    out = torch.empty(2, 4)
    poison(out)
    run_body("store(out, 0, None, full(4, 1.0, float32), 1, 4, 4)", {"out": out})
    with pytest.raises(UnwrittenOutput) as caught:
        settle(out, "y")
    assert str(caught.value) == ("UnwrittenOutput: 4 of the 8 elements of y were never written, the first at (1, 0)")
    settle(out, "y")  # the watch has ended


def test_poison_of_integers_and_strided_outputs() -> None:
    out = torch.zeros(4, 6, dtype=torch.int32)[:, ::2]
    poison(out)
    assert (out == 0x5BAD5BAD).all()
    run_body("scatter(out, iota(12, 2, 1, int64), None, iota(12, 1, 1, int32))", {"out": out})
    settle(out, "y")
    assert out.flatten().tolist() == list(range(12))


def test_two_threads_write_different_values() -> None:
    out = torch.zeros(4)
    body = "store(out, 0, None, full(1, float(thread_x()), float32), 1, 1, 1)"
    text = fault_text(GlobalRace, body, {"out": out}, threads=2)
    assert "store writes element 0 of out, where thread (0, 0, 0) of block (0, 0, 0) wrote another value" in text
    body = "store(out, 0, None, full(1, float(block_x()), float32), 1, 1, 1)"
    assert "of block (0, 0, 0) wrote another value" in fault_text(GlobalRace, body, {"out": out}, grid=(2, 1, 1))
    run_body("store(out, 0, None, full(1, 2.0, float32), 1, 1, 1)", {"out": out}, threads=2, grid=(2, 1, 1))
    run_body(
        "for i in range(2):\n"
        "    if thread_x() == i:\n"
        "        store(out, 0, None, full(1, float(i), float32), 1, 1, 1)\n"
        "    barrier()",
        {"out": out},
        threads=2,
    )
    assert out[0].item() == 1.0


def test_read_of_what_another_thread_just_wrote() -> None:
    out = torch.zeros(64)
    body = """
        store(out, thread_x(), None, 1.0, 1, 1, 1)
        {between}
        t = load(out, (thread_x() + 63) % 64, None, 1, 1, 1)
        """
    text = fault_text(GlobalRace, body.format(between=""), {"out": out}, threads=64)
    assert "load reads element 0 of out, which thread (0, 0, 0) of block (0, 0, 0) wrote in the same launch" in text
    run_body(body.format(between="barrier()"), {"out": out}, threads=64)
    warp = "t = load(out, (thread_x() + 31) % 32, None, 1, 1, 1)"
    run_body(f"store(out, thread_x(), None, 1.0, 1, 1, 1)\nwarp_barrier()\n{warp}", {"out": out}, threads=32)


def test_read_of_what_another_block_wrote_needs_an_atomic() -> None:
    parts, done, out = torch.zeros(3), torch.zeros(1, dtype=torch.int32), torch.zeros(1)
    body = """
        store(parts, block_x(), None, full(1, block_x() + 1, float32), 1, 1, 1)
        fence_gpu()
        last = {last}
        if last:
            fence_gpu()
            store(out, 0, None, tile_sum(load(parts, 0, None, 3, 1, 1)), 1, 1, 1)
        """
    arguments = {"parts": parts, "done": done, "out": out}
    text = fault_text(GlobalRace, body.format(last="block_x() == 2"), arguments, grid=(3, 1, 1))
    assert "load reads element 0 of parts, which thread (0, 0, 0) of block (0, 0, 0) wrote" in text
    run_body(body.format(last="atomic_add(done, 0, 1) == 2"), arguments, grid=(3, 1, 1), order="reversed")
    assert out.item() == 6.0


def test_absent_lane() -> None:
    text = fault_text(AbsentLane, "warp_sum(full(1, 1.0, float32), 32)", {}, threads=16)
    assert "warp_sum over groups of 32 lanes in a warp that has 16" in text
    text = fault_text(AbsentLane, "shuffle_xor(full(1, 1.0, float32), 16)", {}, threads=16)
    assert "shuffle_xor reads lane 31 of a warp that has 16" in text


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("full(2, 1.0, float16) + full(2, 1.0, float16)", "float16 tiles have no +"),
        ("full(2, 1.0, float32) + full(2, 1.0, float64)", "+ of a float32 tile and a float64 tile"),
        ("full(2, 1.0, float32) * full(3, 1.0, float32)", "* of tiles of 2 and 3 elements"),
        ("full(2, 1, int32) / 2", "int32 tiles have no /"),
        ("full(2, True, boolean) + full(2, True, boolean)", "boolean tiles have no +"),
        ("full(2, 1.0, float32) & full(2, 1.0, float32)", "float32 tiles have no &"),
        ("exp(full(2, 1, int32))", "int32 tiles have no exp"),
        ("exp(full(2, 1.0, bfloat16))", "bfloat16 tiles have no exp"),
        ("maximum(full(2, 1.0, bfloat16), 1.0)", "bfloat16 tiles have no maximum"),
        ("tile_sum(full(2, 1.0, bfloat16))", "bfloat16 tiles have no tile_sum"),
        ("tile_any(full(2, 1.0, float32))", "float32 tiles have no tile_any"),
        ("bitcast(full(2, 1.0, float32), int64)", "bitcast of float32 to int64"),
        ("1 if full(2, 1.0, float32) > 0.0 else 2", "a boolean tile of 2 elements is used as a Python condition"),
        ("store(p, 0, None, full(1, 1, int32), 1, 1, 1)", "store of int32 into p"),
        ("store(p, 0, None, full(2, 1.0, float32), 4, 1, 1)", "store of a tile of 2 elements to 4 places"),
        ("where(full(1, 1, int32), full(1, 1, int32), 0)", "where with a mask of int32"),
        ("where(full(3, True, boolean), full(2, 1, int32), 0)", "where of tiles of 3, 2 and 1 elements"),
    ],
)
def test_tiles_that_do_not_go_together(body: str, message: str) -> None:
    assert message in fault_text(TileMismatch, body, {"p": torch.zeros(8)})


def test_udiv32_needs_31_bits() -> None:
    assert "udiv32(2147483648, 3)" in fault_text(InvalidOperand, "udiv32(n, 3)", {"n": 2**31})
    assert "divides by zero" in fault_text(InvalidOperand, "umod(n, 0)", {"n": 5})


def test_python_exceptions_name_the_line() -> None:
    text = fault_text(KernelCrash, "a = n\nb = a // 0", {"n": 3})
    assert text == (
        "KernelCrash: the kernel raised ZeroDivisionError: integer division or modulo by zero\n"
        "  <kernel>:5:8\n"
        "    b = a // 0\n"
        "        ^^^^^^\n"
        "  in thread (0, 0, 0) of block (0, 0, 0)"
    )


def test_arguments_are_checked() -> None:
    with pytest.raises(InvalidOperand, match="2 parameters"):
        from_source(("int64",), (1,))
    with pytest.raises(InvalidOperand, match=r"kernel argument x is torch\.float64 on cpu"):
        from_source(("*float32", "int64"), (torch.zeros(1, dtype=torch.float64), 1))
    with pytest.raises(InvalidOperand, match="kernel argument n is 9223372036854775808"):
        from_source(("*float32", "int64"), (torch.zeros(1), 2**63))


def from_source(signature: tuple[str, ...], arguments: tuple[object, ...]) -> None:
    from fusedsl.numba_cuda.interpreter import interpret
    from fusedsl.numba_cuda.kernel import Geometry, KernelSource

    interpret(KernelSource("k", "def k(x, n):\n    pass\n", signature, 32), Geometry((1, 1, 1), (1, 1, 1)), arguments)


def test_numpy_stays_quiet() -> None:
    with np.errstate(all="raise"):
        out = torch.zeros(1)
        run_body("store(out, 0, None, full(1, 1.0, float32) / 0.0, 1, 1, 1)", {"out": out})
    assert out.item() == float("inf")
