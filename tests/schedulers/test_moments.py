# SPDX-License-Identifier: Apache-2.0
"""A mean and the squares about it, in one exchange between threads: in every form of a row."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fusedsl
from fusedsl.schedulers import inner_persistent
from fusedsl.schedulers.row_params import RowParams
from tests.tolerance import assert_matches_eager

BF16 = torch.bfloat16


def layer_norm(x, weight, bias):
    return F.layer_norm(x, (x.shape[-1],), weight, bias, 1e-5)


def with_sum(x):
    """The sum is needed for more than the mean."""
    total = x.sum(-1, keepdim=True)
    away = x - total / x.shape[-1]
    return away * (away * away).sum(-1, keepdim=True), total


#: Parameters, and row lengths that they take; threads, warps and blocks without elements among them.
FORMS = {
    "one thread": (RowParams(1, 32, 4, 1), (4,)),
    "a warp, several rows": (RowParams(32, 2, 4, 1), (4, 100, 128)),
    "a block": (RowParams(128, 1, 4, 1), (8, 300, 512)),
    "a block, as loaded": (RowParams(64, 1, 8, 4, prefetch=False, again=True), (8, 1000, 2048)),
    "a block, exact": (RowParams(64, 1, 8, 1, exact=True, again=True), (512,)),
    "cluster": (RowParams(32, 1, 8, 1, cluster=4), (8, 600, 1024)),
    "cluster, parts read by lanes": (RowParams(64, 1, 8, 1, cluster=8, again=True), (8, 520, 4096)),
    "cluster, two parts a lane": (RowParams(256, 1, 8, 1, cluster=8, prefetch=False, again=True), (8, 1000)),
    "cluster, exact": (RowParams(64, 1, 8, 1, exact=True, cluster=8), (4096,)),
    "shared memory": (RowParams(32, 1, 8, 1, "shared"), (8, 296)),
    "shared memory, exact": (RowParams(32, 1, 8, 2, "shared", exact=True), (512, 1024)),
    "shared memory of a cluster": (RowParams(32, 1, 8, 1, "shared", cluster=4), (8, 1000, 2104)),
    "shared memory of a cluster, exact": (RowParams(32, 1, 8, 1, "shared", exact=True, cluster=4), (1024, 2048)),
}
CASES = [(form, columns) for form, (_, lengths) in FORMS.items() for columns in lengths]


@pytest.mark.parametrize(("form", "columns"), CASES)
def test_every_form(device, form, columns, monkeypatch):
    params = FORMS[form][0]
    monkeypatch.setattr(inner_persistent, "compute_heuristics", lambda problem: params)
    fused = fusedsl.fuse(layer_norm)
    args = [torch.randn(shape, device=device).to(BF16) for shape in ((5, columns), (columns,), (columns,))]
    assert [s.params for s in fused.explain(*args).segments] == [params]
    assert_matches_eager(fused, *args)
    if columns == FORMS[form][1][0]:
        assert_matches_eager(fusedsl.fuse(with_sum), torch.randn(5, columns, device=device).to(BF16))


@pytest.mark.parametrize("columns", [100, 1024])
@pytest.mark.parametrize("kind", ["shifted", "outlier", "constant"])
def test_nothing_cancels(device, kind, columns):
    x = torch.randn(4, columns, device=device) + 1e4
    if kind == "outlier":
        x = torch.randn(4, columns, device=device)
        x[:, 0] = 1e4
    if kind == "constant":
        x = torch.full((4, columns), 3.7, device=device)
    weight, bias = torch.ones(columns, device=device), torch.zeros(columns, device=device)
    exact = layer_norm(x.double(), weight.double(), bias.double())
    found = fusedsl.fuse(layer_norm)(x, weight, bias)
    eager = (layer_norm(x, weight, bias) - exact).norm()
    assert (found - exact).norm() <= 1.5 * eager + 1e-6 * exact.norm() + 1e-9


@pytest.mark.parametrize("columns", [64, 100, 512])
def test_infinite_and_nan_elements(device, columns):
    x = torch.randn(4, columns, device=device)
    x[0, 3], x[1, 5], x[2, 7] = float("inf"), float("-inf"), float("nan")
    assert_matches_eager(fusedsl.fuse(layer_norm), x, torch.ones(columns, device=device), x[3].clone())


def test_rows_of_nothing(device):
    found, total = fusedsl.fuse(with_sum)(torch.empty(3, 0, device=device))
    assert found.shape == (3, 0) and torch.equal(total, torch.zeros(3, 1, device=device))


@pytest.mark.parametrize(
    ("columns", "elements", "cluster"),
    [(1024, 32, 1), (4096, 32, 1), (8192, 32, 1), (16384, 64, 1), (65536, 32, 8)],
)
def test_layer_norm_keeps_its_row_as_loaded(columns, elements, cluster):
    """Weights beside the row are loaded last, and registers let four blocks of 256 threads share a multiprocessor."""
    x, weight = torch.empty(4096, columns, dtype=BF16, device="meta"), torch.empty(columns, dtype=BF16, device="meta")
    fused = fusedsl.fuse(layer_norm)
    params = fused.explain(x, weight, weight, arch="H200").segments[0].params
    assert (params.batch * params.vector, params.cluster, params.again) == (elements, cluster, True)
    assert not params.prefetch
    (kernel,) = fused.compile(x, weight, weight, arch="H200")
    assert kernel.spill_bytes == 0 and kernel.registers <= (64 if elements == 32 else 128)


@pytest.mark.parametrize("columns", [12296, 16388, 16392, 24584, 43616])
def test_parts_of_a_cluster_are_even(columns):
    """Blocks of a cluster have as many chunks each, whatever the length, and few registers."""
    x, weight = torch.empty(512, columns, dtype=BF16, device="meta"), torch.empty(columns, dtype=BF16, device="meta")
    fused = fusedsl.fuse(layer_norm)
    (segment,) = fused.explain(x, weight, weight, arch="H200").segments
    (kernel,) = fused.compile(x, weight, weight, arch="H200")
    assert kernel.spill_bytes == 0 and kernel.registers <= (64 if segment.params.cluster > 1 else 128)
    if segment.params.cluster > 1:
        numbers = [a.value for a in segment.plan.launches[0].arguments if hasattr(a, "value")]
        chunks = -(-columns // segment.params.vector)
        assert -(-chunks // segment.params.cluster) * segment.params.vector in numbers
