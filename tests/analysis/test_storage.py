# SPDX-License-Identifier: Apache-2.0
"""Register and shared-memory budgets, storage plans, run-time checks and the projection decision."""

from __future__ import annotations

import attrs
import pytest
import torch

from fusedsl.analysis.budgets import (
    has_high_bandwidth,
    registers_per_thread,
    rounded_smem_bytes,
    threads_per_sm,
)
from fusedsl.analysis.facts import analyse
from fusedsl.analysis.limits import check_inner, check_inner_outer
from fusedsl.analysis.liveness import KeptValue
from fusedsl.analysis.projection import Outcome, Recompute, decide_projection
from fusedsl.analysis.reductions import ReductionProperties
from fusedsl.analysis.refusal import Refusal
from fusedsl.analysis.storage import (
    InnerOuterStorage,
    Storage,
    StorageClass,
    plan_inner_outer_storage,
    plan_inner_storage,
)
from fusedsl.numba_cuda.device import A100, H100, H200
from tests.analysis import graphs
from tests.analysis.dsl import id_of, name_of

KIB = 1024
F = torch.float32


@pytest.mark.parametrize(
    ("threads", "registers"),
    [
        (128, 255), (256, 255), (384, 168), (512, 128), (640, 96), (768, 80), (896, 72), (1024, 64), (1536, 40),
        (2048, 32),
    ],
)  # fmt: skip
def test_registers_per_thread(threads: int, registers: int) -> None:
    assert registers_per_thread(threads) == registers


@pytest.mark.parametrize(
    ("registers", "threads"),
    [(32, 2048), (40, 1536), (64, 1024), (72, 896), (80, 768), (96, 640), (128, 512), (168, 384), (255, 256)],
)
def test_threads_per_sm(registers: int, threads: int) -> None:
    assert threads_per_sm(registers) == threads


def test_devices_of_high_bandwidth() -> None:
    assert [has_high_bandwidth(d) for d in (A100, H100, H200)] == [True, False, True]


@pytest.mark.parametrize(
    ("numel", "itemsize", "expected"),
    [
        (33792, 4, 147456),  # 8448 vectors of 4: 9 rounds of 1024 threads
        (4096, 2, 16384),  # widest first: 512 vectors of 8 still take a whole round
        (4097, 2, 10240),  # odd: single elements, 5 rounds
        (0, 4, 0),
    ],
)
def test_rounded_shared_memory(numel: int, itemsize: int, expected: int) -> None:
    assert rounded_smem_bytes(numel, itemsize) == expected


def _plan(row: int, itemsize: int, device: object = A100, *, is_3d: bool = False) -> Storage:
    value = KeptValue(0, frozenset({0}), itemsize, (1,))

    def live(some: tuple[KeptValue, ...]) -> int:
        return sum(v.bytes((row,)) for v in some)

    return plan_inner_storage((value,), live, (row,), (4,), device, is_3d=is_3d)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("row", "itemsize", "device", "is_3d", "kind", "cluster"),
    [
        (32768, 4, A100, False, StorageClass.REGISTERS, 1),
        (32768 + 1024, 4, A100, False, StorageClass.SHARED, 1),
        (32768 + 1024, 4, A100, True, StorageClass.STREAMED, 1),
        (80 * KIB, 2, A100, False, StorageClass.STREAMED, 1),
        (32768 + 1024, 4, H200, False, StorageClass.CLUSTER, 4),
        (32768 + 1024, 4, H200, True, StorageClass.STREAMED, 1),
        (131072, 2, H200, False, StorageClass.CLUSTER, 4),
        (152064, 2, H200, False, StorageClass.CLUSTER, 8),
        (256000, 2, H200, False, StorageClass.CLUSTER, 8),
        (65536, 4, H200, False, StorageClass.CLUSTER, 4),
        (256000, 4, H200, False, StorageClass.CLUSTER, 16),
        (1 << 20, 4, H200, False, StorageClass.STREAMED, 1),
    ],
)
def test_storage_of_a_row(
    row: int, itemsize: int, device: object, is_3d: bool, kind: StorageClass, cluster: int
) -> None:
    plan = _plan(row, itemsize, device, is_3d=is_3d)
    assert (plan.kind, plan.cluster) == (kind, cluster)


def test_shared_memory_left_for_a_row() -> None:
    # 163 KiB, less a slot of 4 bytes for 1024 threads, the padding of the buffer and the static part.
    assert _plan(33792, 4).available_bytes == 163 * KIB - 4096 - (147456 - 4 * 33792) - 128


def test_only_as_many_buffers_as_needed_move_to_shared_memory() -> None:
    values = tuple(KeptValue(i, frozenset({0}), size, (9,)) for i, size in enumerate((4, 2, 2)))

    def live(some: tuple[KeptValue, ...]) -> int:
        return 17000 * sum(v.itemsize for v in some)

    plan = plan_inner_storage(values, live, (17000,), (4,), A100, is_3d=False, inputs=[1, 2])
    assert plan.kind is StorageClass.SHARED
    assert (plan.registers, plan.shared) == ((0, 2), (1,))
    assert (plan.register_bytes, plan.smem_bytes) == (6 * 17000, rounded_smem_bytes(17000, 2))


# run-time checks ------------------------------------------------------------


def _properties(rows: int, row: int) -> ReductionProperties:
    return ReductionProperties(True, 2, row, 1, row, rows)


def test_inner_checks() -> None:
    assert check_inner(_plan(1024, 4), 4096, _properties(16, 1024), A100) is None
    refused = check_inner(_plan(80 * KIB, 2), 160 * KIB, _properties(1000, 80 * KIB), A100)
    assert refused is not None
    assert refused.code == "not_enough_storage"
    refused = check_inner(_plan(8192, 4), 32768, _properties(15, 8192), H200)
    assert refused is not None
    assert refused.code == "not_enough_blocks"
    assert check_inner(_plan(8192, 4), 32768, _properties(16, 8192), H200) is None
    assert check_inner(_plan(8191, 4), 32764, _properties(1, 8191), H200) is None
    small = attrs.evolve(H200, multiprocessors=4)
    refused = check_inner(_plan(100000, 4, small), 400000, _properties(1000, 100000), small)
    assert refused is not None
    assert refused.code == "over_half_gpu"


# inner-outer ------------------------------------------------------------


def _inner_outer(row: int, over_rows: frozenset[int], outer: int = 2) -> InnerOuterStorage | Refusal:
    values = tuple(KeptValue(i, frozenset({0}), 2, (9,)) for i in range(3))
    return plan_inner_outer_storage(values, outer * row * 4, over_rows, (row,), (4,), H200)


def test_inner_outer_storage_prefers_shared_memory() -> None:
    plan = _inner_outer(8192, frozenset())
    assert isinstance(plan, InnerOuterStorage)
    assert (plan.registers, plan.shared, plan.register_bytes) == ((), (0, 1, 2), 2 * 8192 * 4)
    assert plan.available_smem_bytes == 227 * KIB - 512 * 4 - 128


def test_inner_outer_storage_keeps_what_rows_share_in_shared_memory_longest() -> None:
    plan = _inner_outer(36000, frozenset({0}), outer=1)
    assert isinstance(plan, InnerOuterStorage)
    assert (plan.registers, plan.shared) == ((1,), (0, 2))
    assert plan.register_bytes == 4 * 36000 + 2 * 36000


def test_inner_outer_storage_is_refused_when_nothing_holds_the_row() -> None:
    plan = _inner_outer(65536, frozenset())
    assert isinstance(plan, Refusal)
    assert plan.code == "not_enough_storage"
    assert check_inner_outer(plan, _properties(1000, 65536), H200) is plan


def test_estimate_of_registers_for_threads_that_own_elements() -> None:
    plan = InnerOuterStorage((), (), 2 * 4096 * 4, 0, 0)
    assert plan.registers_per_thread(4096, 32) == 2 * 32 + 40
    assert plan.registers_per_thread(4096, 200) == 255


# projection ------------------------------------------------------------


def _recompute(dear: tuple[str, ...] = (), *, random: bool = False) -> Recompute:
    return Recompute(5, (0,), (), (5,), 8, dear, random, None)


_NOT_PROJECTABLE = attrs.evolve(_recompute(), refusal=Refusal("is_input", "x is an argument itself"))


@pytest.mark.parametrize(
    ("recompute", "plain", "projected", "arguments", "rule", "outcome"),
    [
        (_NOT_PROJECTABLE, 100, 0, {}, "nothing_projectable", Outcome.NO),
        (_recompute(), 100, 100, {}, "no_gain", Outcome.NO),
        (_recompute(), 100, 100, {"size_check": False}, "cheap", Outcome.PROJECT),
        (_recompute(random=True), 200 * KIB, 100 * KIB, {}, "must", Outcome.PROJECT),
        (_recompute(random=True), 100, 50, {}, "random", Outcome.NO),
        (_recompute(), 100, 50, {}, "cheap", Outcome.PROJECT),
        (_recompute(("exp",)), 24 * KIB, 50, {}, "avoid_recompute", Outcome.AVOID_RECOMPUTE),
        (_recompute(("exp",)), 24 * KIB + 4, 50, {}, "large", Outcome.PROJECT),
        (_recompute(("exp",)), 96 * KIB, 50, {"high_bandwidth": True}, "avoid_recompute", Outcome.AVOID_RECOMPUTE),
        (_recompute(("exp",)), 96 * KIB + 4, 50, {"high_bandwidth": True}, "large", Outcome.PROJECT),
        (_recompute(("exp",)), 100, 50, {"inner": False}, "large", Outcome.PROJECT),
        (_recompute(), 200 * KIB, 50, {"storage_bytes": None}, "cheap", Outcome.PROJECT),
    ],
)
def test_projection_rules(
    recompute: Recompute, plain: int, projected: int, arguments: dict[str, bool], rule: str, outcome: Outcome
) -> None:
    settings = {"storage_bytes": 128 * KIB, "inner": True, "high_bandwidth": False, **arguments}
    found = decide_projection((recompute,), plain, projected, **settings)  # type: ignore[arg-type]
    assert (found.rule, found.outcome) == (rule, outcome)


@pytest.mark.parametrize(
    ("device", "row", "outcome"),
    [
        (H100, 6 * KIB, Outcome.AVOID_RECOMPUTE),
        (H100, 6 * KIB + 2, Outcome.PROJECT),
        (H200, 24 * KIB, Outcome.AVOID_RECOMPUTE),
        (H200, 24 * KIB + 2, Outcome.PROJECT),
    ],
)
def test_softmax_is_projected_from_a_row_length_on(device: object, row: int, outcome: Outcome) -> None:
    facts = analyse(graphs.softmax(row=row), {}, device)  # type: ignore[arg-type]
    assert facts.projection.outcome is outcome


@pytest.mark.parametrize(
    ("build", "outcome", "rule"),
    [
        (graphs.several_scopes, Outcome.NO, "no_gain"),
        (graphs.chain_of_producers, Outcome.NO, "no_gain"),
        (graphs.three_normalizations, Outcome.PROJECT, "cheap"),
        (graphs.dropout_before_layer_norm, Outcome.NO, "random"),
        (graphs.row_of_scalars_shared, Outcome.NO, "nothing_projectable"),
        (graphs.column_argument, Outcome.PROJECT, "cheap"),
        (graphs.cast_of_a_mask, Outcome.NO, "no_gain"),
        (graphs.inner_and_outer, Outcome.NO, "nothing_projectable"),
        (graphs.rms_norm, Outcome.PROJECT, "cheap"),
        (graphs.rms_norm_backward, Outcome.PROJECT, "cheap"),
    ],
)
def test_projection_of_the_small_graphs(build: object, outcome: Outcome, rule: str) -> None:
    found = analyse(build(), {}, H200).projection  # type: ignore[operator]
    assert (found.outcome, found.rule) == (outcome, rule)


def test_weights_are_shared_by_all_rows() -> None:
    graph = graphs.rms_norm_backward()
    facts = analyse(graph, {}, H200)
    assert facts.over_rows == {id_of(graph, "w"), next(n.id for n in graph if n.inputs == (id_of(graph, "w"),))}
    assert {name_of(graph, v.node) for v in facts.kept} == {"dy", "x", "w"}
    assert facts.outer_bytes == 4 * 1024


def test_roles() -> None:
    graph = graphs.rms_norm_backward()
    roles = {name_of(graph, r.node): r for r in analyse(graph, {}, H200).roles}
    assert (roles["cs"].innermost, roles["cs"].reference, roles["cs"].normalization) == (True, True, True)
    assert (roles["dw"].innermost, roles["dw"].reference, roles["dw"].terminal) == (False, False, True)


def test_facts_read_like_a_report() -> None:
    assert str(analyse(graphs.softmax(16384, 32768), {}, H200)) == (
        "reductions: inner, [I, R], 16384 results of 32768 elements\n"
        "  m: inner, reference, normalization, pass 1\n"
        "  d: inner, follower, normalization, pass 2\n"
        "persistent buffers: 131072 bytes a row at once\n"
        "  xf: 131072 bytes (float32), resolved at s1\n"
        "  e: 131072 bytes (float32), resolved at o\n"
        "projection: projected: keeping the arguments takes 65536 bytes a row in place of 131072, "
        "worth computing exp again\n"
        "  xf from x\n"
        "  e from x and the row scalars m\n"
        "kept: x (65536 bytes)\n"
        "storage by the budgets: registers (65536 bytes a row fit the 131072 of registers)"
    )
