# SPDX-License-Identifier: Apache-2.0
"""The sweep over row lengths: which lengths, what is planned, and what its verdict finds in made-up data."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import fusedsl
from benchmarks.sweep import run as sweep
from benchmarks.sweep.chart import write_chart
from benchmarks.sweep.lengths import families, fixed, multiples, row_lengths, spread_order, switches, thinned
from benchmarks.sweep.strategy import Planner, matrix_shape
from benchmarks.sweep.verdict import Point, cliffs, report, slow
from benchmarks.timing import Deadline, Timing


def test_fixed_lengths_hold_powers_of_two_and_their_neighbours() -> None:
    found = fixed(300_000)
    assert {1, 2, 3, 1023, 1024, 1025, 262143, 262144, 262145, 300_000} <= found
    assert min(found) == 1 and max(found) == 300_000
    assert max(fixed(1000)) == 1000


def test_multiples_of_8_come_with_neighbours() -> None:
    found = multiples(40)
    assert all(1 <= length <= 300_000 for length in found)
    aligned = [length for length in found if length % 8 == 0]
    assert len(aligned) > 30
    assert any(length - 1 in found and length + 1 in found for length in aligned)


@pytest.mark.parametrize("place", [2, 9, 1000, 5001, 262144])
def test_switches_are_found_exactly(place: int) -> None:
    for family in families():
        found = switches(lambda length: length > place, family)
        below = max((length for length in family if length <= place), default=None)
        if below is None:
            assert found == []
        else:
            assert found == [(below, below + 8 if family.step == 8 else below + 2)]  # type: ignore[attr-defined]


def test_several_switches_and_few_questions() -> None:
    asked = []

    def key(length: int) -> int:
        asked.append(length)
        return sum(length > place for place in (24, 1024, 1040, 8192, 131072))

    found = switches(key, range(8, 300_001, 8))
    assert [low for low, _ in found] == [24, 1024, 1040, 8192, 131072]
    assert len(asked) < 250


def test_lengths_hold_both_sides_of_every_switch() -> None:
    lengths = row_lengths([lambda length: length > 5000, lambda length: length > 70000])
    assert {5000, 5008, 4999, 5001, 70000, 70008} <= set(lengths)
    assert lengths == sorted(set(lengths)) and len(lengths) <= 250


def test_orders_and_thinning_keep_the_ends() -> None:
    lengths = list(range(1, 101))
    assert thinned(lengths, 10)[0] == 1 and thinned(lengths, 10)[-1] == 100 and len(thinned(lengths, 10)) == 10
    assert thinned(lengths, 1000) == lengths
    assert sorted(spread_order(lengths)) == lengths
    assert max(spread_order(lengths)[:25]) > 90


def test_matrix_shape() -> None:
    assert matrix_shape(1024, torch.bfloat16) == (131072, 1024)
    assert matrix_shape(300, torch.float32, 100) == (1, 300)


def test_the_planner_tells_strategies_apart() -> None:
    planner = Planner(sweep.OPERATIONS[0], torch.bfloat16)
    short, long = planner.strategy(1024), planner.strategy(262144)
    assert short.label == "register"
    assert "cluster" in long.label
    assert short.key != long.key and planner.key(1024) == short.key
    assert len(short.sources) == 1 and "RowParams" in short.params[0]


def points(rate: Callable[[int], float], lengths: list[int], dtype: str = "bfloat16") -> list[Point]:
    """Points of a copy rate of 4000 GB/s, which themselves reach the part that ``rate`` gives."""
    return [Point("softmax", dtype, n, 8, "register", ("P",), 1.0, 4000 * rate(n), 4000.0, 1e-3, True) for n in lengths]


def test_a_cliff_is_found_from_its_lower_side() -> None:
    step = points(lambda n: 0.9 if n <= 4096 else 0.5, [4000, 4096, 4104, 4200])
    (found,) = cliffs(step)
    assert (found.length, found.neighbour) == (4104, 4096)
    assert found.ratio == pytest.approx(1.8)


def test_a_hole_is_one_cliff() -> None:
    hole = points(lambda n: {1024: 0.9, 1025: 0.3}.get(n, 0.8), [1023, 1024, 1025, 1026])
    assert [(c.length, c.neighbour) for c in cliffs(hole)] == [(1025, 1024)]


def test_slopes_and_distant_lengths_are_no_cliffs() -> None:
    assert cliffs(points(lambda n: 0.9 - 0.1 * (n % 2), [1023, 1024, 1025])) == []
    assert cliffs(points(lambda n: 0.9 if n < 3000 else 0.4, [2048, 4096])) == []


def test_dtypes_are_apart() -> None:
    both = points(lambda n: 0.9, [1024]) + points(lambda n: 0.2, [1025], "float32")
    assert cliffs(both) == []


def test_slow_lengths_are_long_ones_only() -> None:
    found = slow(points(lambda n: 0.8 if n < 1000 else 0.9, [64, 255, 256, 512, 1024]))
    assert [p.length for p in found] == [256, 512]


def test_report_and_chart(tmp_path: Path) -> None:
    some = points(lambda n: 0.9 if n <= 4096 else 0.5, [8, 4096, 4104])
    text = report(some)
    assert "softmax bfloat16: 3 lengths from 8 to 4104, least of the copy rate from 256 on 0.50" in text
    assert "cliff at 4104: 1.80 times" in text and "slow at 4104: 0.50" in text
    pytest.importorskip("matplotlib")
    assert write_chart(tmp_path / "sweep.png", "title", some)
    assert (tmp_path / "sweep.png").read_bytes().startswith(b"\x89PNG")
    assert not write_chart(tmp_path / "none.png", "title", [])


@pytest.mark.parametrize("length", [1, 7, 40, 100])
def test_values_of_a_length_are_checked(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = torch.randn(1024, generator=torch.Generator().manual_seed(0)).bfloat16()
    monkeypatch.setattr(sweep, "measure_gpu", lambda calls, flush, repeats: {n: Timing.of([2.0]) for n in calls})
    planners = [Planner(one, torch.bfloat16, None, numbers.nbytes) for one in sweep.OPERATIONS]
    strategies = {(p.operation.name, length): p.strategy(length) for p in planners}
    plan = sweep.Plan(torch.bfloat16, (length,), strategies)
    functions = {one.name: fusedsl.fuse(one.function, fallback="error") for one in sweep.OPERATIONS}
    found = sweep.measure_length(plan, functions, length, numbers, None, 1)  # type: ignore[arg-type]
    assert [p.operation for p in found] == [one.name for one in sweep.OPERATIONS]
    assert all(p.correct and p.rows == 1024 // length for p in found)
    copied = found[0]
    assert copied.copy_gbps == pytest.approx(2 * 2 * copied.rows * length / 2.0 / 1e3)
    wrong = {**functions, "softmax": lambda x: torch.softmax(x, -1) * 1.05}
    assert [p.operation for p in sweep.measure_length(plan, wrong, length, numbers, None, 1) if not p.correct] == [  # type: ignore[arg-type]
        "softmax"
    ]


def test_the_ends_of_a_matrix() -> None:
    x = torch.arange(12).view(6, 2)
    assert torch.equal(sweep.ends(x, 3), x)
    assert torch.equal(sweep.ends(x, 2), torch.cat([x[:2], x[4:]]))


def test_plan_and_results_file(tmp_path: Path) -> None:
    plan = sweep.make_plan(torch.float32, 6, None, 1 << 20)
    assert len(plan.lengths) == 6 and {1, 300_000} <= set(plan.lengths)
    assert set(plan.strategies) == {(one.name, n) for one in sweep.OPERATIONS for n in plan.lengths}
    assert len(plan.sources) == len(set(plan.sources)) > 3
    assert sweep.compile_all(plan.sources, "sm_90a", 1) == 0, "one process compiles as it goes"
    sweep.write(tmp_path, points(lambda n: 0.9 if n <= 4096 else 0.5, [4096, 4104]), 3)
    document = json.loads((tmp_path / "sweep.json").read_text())
    assert document["left_out"] == 3 and len(document["points"]) == 2
    assert document["cliffs"][0]["length"] == 4104 and document["slow"][0][2] == 4104


def test_a_sweep_without_time_still_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = sweep.make_plan(torch.float32, 3, None, 1 << 16)
    monkeypatch.setattr(sweep, "make_plan", lambda dtype, keep, arch: small)
    monkeypatch.setattr(sweep, "properties", lambda index: fusedsl.numba_cuda.device.resolve("H200"))
    monkeypatch.setattr(sweep, "compile_all", lambda sources, arch, processes: 0)
    monkeypatch.setattr(sweep, "make_numbers", lambda dtype: torch.zeros(8, dtype=dtype))
    monkeypatch.setattr(sweep, "L2Flush", lambda: None)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    sweep.run(tmp_path, True, Deadline(0.0))
    assert json.loads((tmp_path / "sweep.json").read_text())["left_out"] == 9
