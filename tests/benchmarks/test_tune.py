# SPDX-License-Identifier: Apache-2.0
"""Tuning: candidates are valid parameters, and what is forced is what runs (in the interpreter)."""

from __future__ import annotations

import itertools

import attrs
import pytest
import torch

from benchmarks import tune
from benchmarks.operations import Operation
from benchmarks.suites import BATCHNORM, NORMS_BACKWARD
from benchmarks.tuning.candidates import candidates
from benchmarks.tuning.subject import NotOneSegment, make_subject
from fusedsl.numba_cuda.device import H200
from fusedsl.schedulers import inner_outer_persistent, outer_persistent
from fusedsl.schedulers.column_params import PersistentColumnParams
from fusedsl.schedulers.inner_outer_shared import SharedRows
from fusedsl.schedulers.row_params import RowParams

WITH_SUMS = [operation for operation in NORMS_BACKWARD if len(operation.wanted) > 1]


@pytest.mark.parametrize("operation", WITH_SUMS, ids=lambda o: o.name)
def test_forced_parameters_of_inner_outer_persistent(operation: Operation) -> None:
    shape = (24, 64)
    subject = make_subject(operation, inner_outer_persistent, shape, torch.bfloat16, "cpu")
    base = subject.base
    label = str(base)
    row, _ = tune.check(subject, label, inner_outer_persistent.schedule(subject.problem, base))
    assert row["correct"] and row["base"]
    tried = [
        one
        for one in candidates(64, base, 24, subject.problem.device)
        if one.row != base.row or one.blocks != base.blocks
    ]
    tried += [one for one in candidates(64, base, 100_000, subject.problem.device) if one.row.threads == 32][:1]
    for params in tried[:3]:
        row, _ = tune.check(subject, str(params), inner_outer_persistent.schedule(subject.problem, params))
        assert row["correct"], params


@pytest.mark.parametrize(
    ("operation", "shape"), list(itertools.product(WITH_SUMS, [(32768, 1024), (8192, 8192), (4096, 16384)]))
)
def test_candidates_hold_a_row(operation: Operation, shape: tuple[int, int]) -> None:
    subject = make_subject(operation, inner_outer_persistent, (128, shape[1]), torch.bfloat16, "cpu")
    device = subject.problem.device
    found = candidates(shape[1], subject.base, shape[0], device)
    assert isinstance(subject.base.row, SharedRows) == (shape[1] > 8192)
    assert {type(one.row) for one in found} == {RowParams, type(subject.base.row)}
    assert found[0] == subject.base and len(found) > 10
    for params in found[1:]:
        row = params.row
        held = row.held if isinstance(row, SharedRows) else row.tile
        assert held >= shape[1] and row.exact == (held == shape[1])
        assert params.blocks <= shape[0]


@pytest.mark.parametrize("suite", tune.SUITES)
def test_every_suite_makes_plans(suite: str) -> None:
    shape = (16, 64, 8, 8) if suite == "batchnorm" else (128, 1024)
    for operation, scheduler in tune.SUITES[suite]:
        try:
            subject = make_subject(operation, scheduler, shape, torch.bfloat16, "cpu")
        except NotOneSegment as refusal:
            assert "planned as" in str(refusal)
            continue
        found = tune.plans(subject, scheduler, shape)
        assert found[0][0] == str(subject.base) and len(found) > 1


def test_rows_that_nothing_holds_are_refused_with_the_reason() -> None:
    with pytest.raises(NotOneSegment, match=r"planned as .*rows of 500000 elements"):
        make_subject(WITH_SUMS[0], inner_outer_persistent, (20, 500_000), torch.bfloat16, "cpu")


@pytest.mark.parametrize("operation", BATCHNORM, ids=lambda o: o.name)
def test_forced_parameters_of_outer_persistent(operation: Operation) -> None:
    subject = make_subject(operation, outer_persistent, (4, 24, 3, 5), torch.bfloat16, "cpu")
    base = subject.base
    narrow = attrs.evolve(base, threads=2, lines=8, batch=1, blocks=2, resident=16)
    for params in (base, attrs.evolve(base, blocks=3), narrow):
        row, _ = tune.check(subject, str(params), outer_persistent.schedule(subject.problem, params))
        assert row["correct"], params


def test_candidates_of_columns_are_resident_at_once() -> None:
    base = PersistentColumnParams(32, 16, 8, 4, blocks=33, resident=384, exact=True)
    found = candidates(1024, base, 50176, H200)
    assert found[0] == base and len(found) > 10
    for params in found[1:]:
        assert params.blocks * -(-1024 // params.columns) <= H200.multiprocessors
        assert params.resident % params.chunk == 0
        assert params.resident * params.columns <= base.resident * base.columns
