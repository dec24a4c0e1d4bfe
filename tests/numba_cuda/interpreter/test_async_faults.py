# SPDX-License-Identifier: Apache-2.0
"""Planted faults of asynchronous copies, mbarriers, clusters and barriers of other groups."""

from __future__ import annotations

import re

import pytest
import torch

from fusedsl.numba_cuda.interpreter.errors import (
    BarrierMisuse,
    Deadlock,
    InvalidOperand,
    KernelFault,
    MisalignedAccess,
    OutOfBounds,
    RemoteAccess,
    SharedRace,
    UnfinishedCopy,
    UninitializedRead,
)
from tests.numba_cuda.interpreter.support import fault_text, run_body

ORDERS = ("forward", "reversed", 3)


def found(kind: type[KernelFault] | tuple[type[KernelFault], ...], body: str, **options: object) -> str:
    """The fault of a kernel over x (256 floats) and y (256 floats), found in every order of threads: which of several
    kinds may depend on it, the text is that of the first order."""
    texts = []
    for order in ORDERS:
        with pytest.raises(kind) as caught:
            run(body, order=order, **options)
        texts.append(re.sub(r"<fusedsl k [0-9a-f]{10}>", "<kernel>", str(caught.value)))
    return texts[0]


def run(body: str, **options: object) -> torch.Tensor:
    """Interpret such a kernel; y afterwards."""
    y = torch.zeros(256)
    run_body(body, {"x": torch.ones(256), "y": y}, **{"threads": 32, "dynamic_smem_bytes": 1024, **options})
    return y


# cp.async ------------------------------------------------------------------------------------------------------------

COPY = """
s = dynamic_shared(float32)
i = thread_x() * 4
async_copy(s, i, x, i, None, 1, 1, 4)
"""


def test_read_before_the_wait() -> None:
    text = found(UnfinishedCopy, COPY + "async_commit()\nstore(y, i, None, shared_load(s, i, 4), 1, 1, 4)")
    assert text == (
        "UnfinishedCopy: shared_load reads element 0 of dynamic_shared(float32) without having waited for the "
        "async_copy of thread (0, 0, 0) at line 6: async_copy(s, i, x, i, None, 1, 1, 4)\n"
        "  <kernel>:8:22\n"
        "    store(y, i, None, shared_load(s, i, 4), 1, 1, 4)\n"
        "                      ^^^^^^^^^^^^^^^^^^^^\n"
        "  try: async_commit() and async_wait(n); barrier() for other threads\n"
        "  in thread (0, 0, 0) of block (0, 0, 0)"
    )


UNFINISHED = {
    "too many groups left": "async_commit()\nasync_wait(1)\nshared_load(s, i, 4)",
    "not committed": "async_wait(0)\nshared_load(s, i, 4)",
    "another thread, only a barrier": "async_commit()\nbarrier()\nshared_load(s, 124 - i, 4)",
    "overwritten in flight": "async_commit()\nshared_store(s, i, load(x, i, None, 1, 1, 4))",
    "copied over in flight": "async_copy(s, i, x, i, None, 1, 1, 4)",
}


@pytest.mark.parametrize("case", UNFINISHED)
def test_copies_not_waited_for(case: str) -> None:
    assert "without having waited for the async_copy" in found(UnfinishedCopy, COPY + UNFINISHED[case])


def test_another_thread_needs_a_barrier_after_the_wait() -> None:
    body = COPY + "async_commit()\nasync_wait(0)\nif thread_x() > 0:\n    shared_load(s, 0, 4)"
    assert "reads element 0" in found((SharedRace, UninitializedRead, UnfinishedCopy), body)
    assert "with no barrier after thread (0, 0, 0)" in fault_text(
        SharedRace, body, {"x": torch.ones(256)}, threads=32, dynamic_smem_bytes=1024
    )


def test_copy_over_what_another_thread_still_reads() -> None:
    body = COPY + "async_commit()\nasync_wait(0)\nbarrier()\nt = shared_load(s, 124 - i, 4)\n"
    found((SharedRace, UnfinishedCopy), body + "async_copy(s, i, x, 0, None, 1, 1, 4)")
    run_body(
        body + "barrier()\nasync_copy(s, i, x, 0, None, 1, 1, 4)\nasync_commit()\nasync_wait(0)",
        {"x": torch.ones(256)},
        threads=32,
        dynamic_smem_bytes=1024,
    )


def test_copies_are_checked_like_other_accesses() -> None:
    assert "elements 256 to 259 of x" in found(OutOfBounds, COPY + "async_copy(s, 128 + i, x, 256, None, 1, 1, 4)")
    assert "of dynamic_shared" in found(OutOfBounds, COPY + "async_copy(s, 256, x, i, None, 1, 1, 4)")
    assert "of x" in found(MisalignedAccess, COPY + "async_copy(s, 128 + i, x, 1, None, 1, 1, 4)")
    assert "of dynamic_shared" in found(MisalignedAccess, COPY + "async_copy(s, 129, x, 0, None, 1, 1, 4)")
    assert "chunks of 12 bytes" in found(InvalidOperand, COPY + "async_copy(s, 128, x, 0, None, 1, 1, 3)")
    assert "multiple of 16" in found(InvalidOperand, "dynamic_shared(float32, 8)")


# mbarriers and bulk copies -------------------------------------------------------------------------------------------

BULK = """
s = dynamic_shared(float32)
m = mbarriers(2)
if thread_x() == 0:
    mbarrier_init(m, 0, 1)
    mbarrier_init(m, 1, 1)
    mbarrier_fence()
    mbarrier_expect(m, 0, 512)
    bulk_load(s, 0, x, 0, 128, m, 0)
barrier()
"""


def test_read_without_waiting_for_the_mbarrier() -> None:
    text = found(UnfinishedCopy, BULK + "shared_load(s, 0, 1)")
    assert "without having waited for the bulk_load of thread (0, 0, 0) at line 11" in text
    assert "try: mbarrier_wait on mbarrier 0 of mbarriers(2) of block (0, 0, 0)" in text


def test_one_thread_waits_and_the_others_go_on() -> None:
    body = BULK + "if thread_x() == 0:\n    mbarrier_wait(m, 0, 0)\n"
    found(UnfinishedCopy, body + "shared_load(s, 0, 1)")
    run_body(body + "barrier()\nshared_load(s, 0, 1)", {"x": torch.ones(256)}, threads=32, dynamic_smem_bytes=1024)
    run_body(body + "warp_barrier()\nshared_load(s, 0, 1)", {"x": torch.ones(256)}, threads=32, dynamic_smem_bytes=1024)


def test_too_few_bytes() -> None:
    text = found(Deadlock, BULK.replace("512", "768") + "mbarrier_wait(m, 0, 0)")
    assert text.startswith(
        "Deadlock: threads of block (0, 0, 0) wait for others that will never come\n"
        "    32 threads (0 to 31) wait at mbarrier_wait for phase 0 of mbarrier 0 of mbarriers(2) of block (0, 0, 0): "
        "256 of 768 expected bytes missing, line 13: mbarrier_wait(m, 0, 0)\n"
        "  <kernel>:13:4\n"
    )


DEADLOCKS = {
    "too many bytes": ("mbarrier_wait(m, 0, 0)", "384 bytes landed beyond the 128 expected"),
    "nobody arrives": ("mbarrier_wait(m, 1, 0)", "1 of 1 arrivals missing"),
    "parity of the next phase": ("mbarrier_wait(m, 0, 0)\nmbarrier_wait(m, 0, 1)", "for phase 1 of mbarrier 0"),
}


@pytest.mark.parametrize("case", DEADLOCKS)
def test_waits_that_never_complete(case: str) -> None:
    line, message = DEADLOCKS[case]
    bulk = BULK.replace("512", "128") if case == "too many bytes" else BULK
    assert message in found(Deadlock, bulk + line)


def test_a_block_must_wait_for_its_copies() -> None:
    text = found(UnfinishedCopy, BULK)
    assert text.startswith("UnfinishedCopy: block (0, 0, 0) ends without waiting for this bulk_load\n  <kernel>:11:8\n")


def test_parity_one_passes_on_a_new_mbarrier() -> None:
    run_body(
        BULK + "mbarrier_wait(m, 1, 1)\nmbarrier_wait(m, 0, 0)",
        {"x": torch.ones(256)},
        threads=32,
        dynamic_smem_bytes=1024,
    )


MISUSE = {
    "never initialised": "m = mbarriers(1)\nmbarrier_arrive(m, 0)",
    "initialised by a thread not waited for": """
m = mbarriers(1)
if thread_x() == 0:
    mbarrier_init(m, 0, 32)
warp_max(cast(1.0, float32), 32)
mbarrier_arrive(m, 0)
""",
    "twice": "m = mbarriers(1)\nif thread_x() == 0:\n    mbarrier_init(m, 0, 1)\n    mbarrier_init(m, 0, 1)",
    "too many arrivals": """
m = mbarriers(1)
if thread_x() == 0:
    mbarrier_init(m, 0, 2)
    mbarrier_expect(m, 0, 64)
    mbarrier_arrive(m, 0)
    mbarrier_arrive(m, 0)
""",
    "no fence before a copy": """
s = dynamic_shared(float32)
m = mbarriers(1)
if thread_x() == 0:
    mbarrier_init(m, 0, 1)
    mbarrier_expect(m, 0, 16)
    bulk_load(s, 0, x, 0, 4, m, 0)
""",
}
MESSAGES = ("orders this after its mbarrier_init", "orders this after", "again", "arrival 3", "used by a copy")


@pytest.mark.parametrize(("case", "message"), list(zip(MISUSE, MESSAGES, strict=True)))
def test_misused_mbarriers(case: str, message: str) -> None:
    assert message in found(BarrierMisuse, MISUSE[case])


def test_operands_of_mbarriers() -> None:
    assert "mbarrier 2 of mbarriers(2)" in found(OutOfBounds, BULK + "mbarrier_wait(m, 2, 0)")
    assert "parity 2" in found(InvalidOperand, BULK + "mbarrier_wait(m, 0, 2)")
    assert "count of 0" in found(InvalidOperand, "m = mbarriers(1)\nmbarrier_init(m, 0, 0)")
    assert "a phase" in found(InvalidOperand, BULK + "mbarrier_expect(m, 1, 1 << 20)")


def test_bulk_copies_are_checked() -> None:
    for line, kind, message in (
        ("bulk_load(s, 0, x, 0, 6, m, 0)", MisalignedAccess, "the size is 8 bytes past"),
        ("bulk_load(s, 0, x, 2, 4, m, 0)", MisalignedAccess, "the address in x is 8 bytes past"),
        ("bulk_load(s, 2, x, 0, 4, m, 0)", MisalignedAccess, "the offset in dynamic_shared(float32) is 8 bytes past"),
        ("bulk_load(s, 0, x, 0, 0, m, 0)", InvalidOperand, "of 0 elements"),
        ("bulk_load(s, 0, x, 200, 60, m, 0)", OutOfBounds, "elements 200 to 259 of x"),
        ("bulk_load(s, 200, x, 0, 60, m, 0)", OutOfBounds, "elements 200 to 259 of dynamic_shared"),
        ("bulk_store(y, 252, s, 0, 8)", OutOfBounds, "elements 252 to 259 of y"),
    ):
        assert message in found(kind, BULK + "mbarrier_wait(m, 0, 0)\n" + line)


def test_load_over_what_others_still_read() -> None:
    ring = (
        BULK
        + """
mbarrier_wait(m, 0, 0)
t = shared_load(s, thread_x(), 1)
HANDSHAKE
if thread_x() == 0:
    mbarrier_expect(m, 0, 512)
    bulk_load(s, 0, x, 128, 128, m, 0)
mbarrier_wait(m, 0, 1)
"""
    )
    found((SharedRace, UnfinishedCopy), ring.replace("HANDSHAKE", ""))
    for handshake in ("barrier()", "named_barrier(3, 32)", "mbarrier_wait(m, 1, 1)\nbarrier()"):
        run_body(ring.replace("HANDSHAKE", handshake), {"x": torch.ones(256)}, threads=32, dynamic_smem_bytes=1024)


STORE = """
s = dynamic_shared(float32)
i = thread_x() * 4
shared_store(s, i, load(x, i, None, 1, 1, 4))
FENCE
barrier()
if thread_x() == 0:
    bulk_store(y, 0, s, 0, 128)
    bulk_commit()
    WAIT
AFTER
"""


def store_body(fence: str = "async_fence()", wait: str = "bulk_wait(0)", after: str = "") -> str:
    return STORE.replace("FENCE", fence).replace("WAIT", wait).replace("AFTER", after)


def test_bulk_store_faults() -> None:
    assert "with no async_fence() of that thread" in found(SharedRace, store_body(fence=""))
    assert "ends without waiting for this bulk_store" in found(UnfinishedCopy, store_body(wait=""))
    assert "ends without waiting" in found(UnfinishedCopy, store_body(wait="bulk_wait(1)"))
    overwrite = "shared_store(s, i, load(x, i, None, 1, 1, 4))"
    text = found(UnfinishedCopy, store_body(wait="", after="if thread_x() == 0:\n    shared_store(s, 0, 1.0)"))
    assert "without having waited for the bulk_store" in text
    found((SharedRace, UnfinishedCopy), store_body(after=overwrite))
    assert "nobody has written" in found(UninitializedRead, store_body().replace("s, 0, 128", "s, 64, 128"))
    y = torch.zeros(256)
    run_body(
        store_body(after="barrier()\n" + overwrite), {"x": torch.ones(256), "y": y}, threads=32, dynamic_smem_bytes=1024
    )
    assert y.sum() == 128


# clusters ------------------------------------------------------------------------------------------------------------

CLUSTER = {"cluster": 2, "grid": (2, 1, 1), "threads": 32}
REMOTE = """
s = shared(float32, 64)
FIRST
if thread_x() == 0:
    remote_store(s, cluster_rank(), cast(1.0, float32), 1 - cluster_rank())
LAST
"""
BARRIER = "cluster_arrive()\ncluster_wait()"


def remote(first: str = BARRIER, last: str = BARRIER) -> str:
    return REMOTE.replace("FIRST", first).replace("LAST", last)


def test_remote_access_before_the_peer_has_started() -> None:
    text = found(RemoteAccess, remote(first=""), **CLUSTER)
    assert "which may not have started" in text
    assert "try: cluster_arrive() and cluster_wait() before the first access" in text


def test_remote_access_after_the_peer_may_have_ended() -> None:
    text = found(RemoteAccess, remote(last=""), **CLUSTER)
    assert "which may have ended before" in text or "which has ended" in text
    assert "<kernel>:8" in text


def test_remote_stores_need_the_cluster_barrier() -> None:
    text = found(
        SharedRace, remote(last="barrier()\nif cluster_rank() == 1:\n    shared_load(s, 0, 1)\n" + BARRIER), **CLUSTER
    )
    assert "of block (0, 0, 0) at line 8" in text
    run_body(remote(last=BARRIER + "\nshared_load(s, 1 - cluster_rank(), 1)"), {"x": torch.ones(1)}, **CLUSTER)


def test_remote_stores_of_two_blocks_to_one_element() -> None:
    body = remote().replace("s, cluster_rank(), cast(1.0, float32), 1 - cluster_rank()", "s, 0, cast(1.0, float32), 0")
    assert "remote_store overwrites element 0" in found(SharedRace, body, **CLUSTER)


def test_rank_outside_the_cluster() -> None:
    body = remote().replace("1 - cluster_rank())", "2)")
    assert "ranks 0 to 1" in found(OutOfBounds, body, **CLUSTER)


def test_half_of_a_cluster_barrier() -> None:
    assert "before cluster_arrive" in found(BarrierMisuse, "cluster_wait()", **CLUSTER)
    assert "cluster_arrive twice" in found(BarrierMisuse, "cluster_arrive()\ncluster_arrive()", **CLUSTER)
    text = found(Deadlock, "if cluster_rank() == 0:\n    cluster_arrive()\n    cluster_wait()", **CLUSTER)
    assert "wait at cluster_wait: 32 of the cluster's 64 threads have arrived, line 6" in text


SEND = """
m = mbarriers(1)
s = shared(float32, 2)
if thread_x() == 0:
    mbarrier_init(m, 0, 1)
    mbarrier_fence()
    mbarrier_expect(m, 0, BYTES)
cluster_arrive()
cluster_wait()
if thread_x() < 2:
    remote_store_async(s, cluster_rank(), cast(1.0, float32), thread_x(), m, 0)
"""


def test_asynchronous_remote_stores() -> None:
    send = SEND.replace("BYTES", "8")
    read = "shared_load(s, 0, 2)"
    run_body(send + "mbarrier_wait(m, 0, 0)\n" + read, {"x": torch.ones(1)}, **CLUSTER)
    found((UnfinishedCopy, UninitializedRead), send + "barrier()\n" + read, **CLUSTER)
    text = found((UnfinishedCopy, RemoteAccess), send, **CLUSTER)
    assert "ends without waiting for this remote_store_async" in text or "which has ended" in text
    assert "4 of 12 expected bytes missing" in found(
        Deadlock, SEND.replace("BYTES", "12") + "mbarrier_wait(m, 0, 0)", **CLUSTER
    )


TURNS = """
m = mbarriers(2)
s = shared(float32, 4)
if thread_x() == 0:
    for turn in range(2):
        mbarrier_init(m, turn, 1)
    mbarrier_fence()
    for turn in range(2):
        mbarrier_expect(m, turn, 8)
cluster_arrive()
cluster_wait()
for row in range(5):
    turn = row & 1
    place = PLACE
    warp_sum(cast(1.0, float32), 32)
    if thread_x() < 2:
        remote_store_async(s, place + cluster_rank(), cast(row, float32), thread_x(), m, turn)
    mbarrier_wait(m, turn, row >> 1 & 1)
    if thread_x() == 0:
        mbarrier_expect(m, turn, 8)
    shared_load(s, place, 2)
"""


def test_an_asynchronous_remote_store_tells_what_its_sender_has_read() -> None:
    """Two places in turns need no other barrier; one is not enough, nor is it where lanes do not meet in between."""
    run_body(TURNS.replace("PLACE", "2 * turn"), {"x": torch.ones(1)}, **CLUSTER)
    found((SharedRace, UnfinishedCopy), TURNS.replace("PLACE", "0"), **CLUSTER)
    alone = TURNS.replace("PLACE", "2 * turn").replace("    warp_sum(cast(1.0, float32), 32)\n", "")
    found(SharedRace, alone, **CLUSTER)


def test_an_asynchronous_remote_store_shows_nothing_else() -> None:
    """What a block received, and told of, may be overwritten by who was told, not read."""
    told = """
m = mbarriers(2)
s = shared(float32, 2)
if thread_x() == 0:
    mbarrier_init(m, 0, 1)
    mbarrier_init(m, 1, 1)
    mbarrier_fence()
    mbarrier_expect(m, 0, 4)
    mbarrier_expect(m, 1, 4)
cluster_arrive()
cluster_wait()
if thread_x() == 0:
    if cluster_rank() == 0:
        remote_store_async(s, 0, cast(1.0, float32), 1, m, 0)
        mbarrier_wait(m, 1, 0)
        AFTER
    else:
        mbarrier_wait(m, 0, 0)
        remote_store_async(s, 1, cast(2.0, float32), 0, m, 1)
cluster_arrive()
cluster_wait()
"""
    run_body(told.replace("AFTER", "remote_store(s, 0, cast(3.0, float32), 1)"), {"x": torch.ones(1)}, **CLUSTER)
    found(UnfinishedCopy, told.replace("AFTER", "remote_load(s, 0, 1, 1)"), **CLUSTER)


# other groups --------------------------------------------------------------------------------------------------------


def test_named_barriers() -> None:
    body = """
s = shared(float32, 96)
i = thread_x()
if warp() < 2:
    shared_store(s, i, cast(i, float32))
    named_barrier(1, 64)
    shared_load(s, 63 - i, 1)
"""
    run_body(body, {"x": torch.ones(1)}, threads=96)
    found(
        (SharedRace, UninitializedRead),
        body.replace("named_barrier(1, 64)", "named_barrier(1 + warp(), 32)"),
        threads=96,
    )
    text = found(Deadlock, body.replace("1, 64", "1, 96"), threads=96)
    assert "wait at named_barrier(1, 96): 64 of 96 threads have arrived" in text
    assert "named_barrier(1, 48)" in found(InvalidOperand, "named_barrier(1, 48)", threads=96)
    mixed = "if warp() == 0:\n    named_barrier(1, 64)\nelse:\n    named_barrier(1, 96)"
    assert "named_barrier(1, " in found(BarrierMisuse, mixed, threads=96)


def test_grid_barriers() -> None:
    counter = {"p": torch.zeros(1, dtype=torch.int32)}
    text = fault_text(BarrierMisuse, "grid_barrier(p, 0)", counter, grid=(2, 1, 1))
    assert "not cooperative" in text
    text = fault_text(
        BarrierMisuse, "grid_barrier(p, 0)", {"p": torch.ones(1, dtype=torch.int32)}, grid=(2, 1, 1), cooperative=True
    )
    assert "the counter of grid_barrier holds 1" in text
    text = fault_text(Deadlock, "if block_x() == 0:\n    grid_barrier(p, 0)", counter, grid=(2, 1, 1), cooperative=True)
    assert "waits at grid_barrier" in text
