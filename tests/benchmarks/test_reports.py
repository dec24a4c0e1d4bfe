# SPDX-License-Identifier: Apache-2.0
"""The parts of the benchmarks that need no GPU: traffic, errors, tables, charts, the README's generated parts."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path

import pytest
import torch

from benchmarks import __main__ as command
from benchmarks import environment
from benchmarks.environment import describe
from benchmarks.harness import Case, Entry, relative_error
from benchmarks.peers import PEERS
from benchmarks.readme import NOT_MEASURED, replace_part, results_table
from benchmarks.report import (
    cases_to_data,
    format_failures,
    format_table,
    geometric_mean,
    write_chart,
    write_json,
)
from benchmarks.suites import SUITES
from benchmarks.timing import Timing

OPERATIONS = [operation for suite in SUITES.values() for operation in suite.operations]


def entry(peer: str, gbps: float, correct: bool = True) -> Entry:
    return Entry(peer, Timing(1.0, 0.9, 1.1, 30), gbps, 1e-3, correct)


def example_cases() -> list[Case]:
    """Two cases: nvfuser is wrong in the first, liger failed in the second."""
    ran = (entry("fusedsl", 3800), entry("eager", 1900), entry("nvfuser", 9e3, False))
    first = Case("rmsnorm", (64, 32), "bfloat16", 8256, ran)
    ran = (entry("fusedsl", 950), entry("eager", 1000), Entry("liger", note="OSError: no"))
    second = Case("rmsnorm", (8, 4), "bfloat16", 136, ran)
    return [first, second]


def test_arguments_are_the_same_every_time() -> None:
    first, second = (OPERATIONS[0].make_arguments((3, 4), torch.float32, "cpu") for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_relative_error() -> None:
    truth = torch.tensor([3.0, 4.0], dtype=torch.float64)
    assert relative_error(torch.tensor([3.0, 4.5]), truth) == pytest.approx(0.1)
    assert relative_error(torch.tensor([3.0, float("nan")]), truth) == math.inf


def test_timing_summary() -> None:
    timing = Timing.of([float(k) for k in range(11)])
    assert (timing.median_us, timing.low_us, timing.high_us, timing.samples) == (5.0, 2.0, 8.0, 11)


def test_geometric_mean() -> None:
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert math.isnan(geometric_mean([]))


def test_table_ignores_wrong_values_when_it_picks_the_best_peer() -> None:
    lines = format_table(example_cases(), ["fusedsl", "eager", "nvfuser"], 4000.0).splitlines()
    assert lines[2] == "| rmsnorm | 64x32 | 3800 | 1900 | 9000! | eager | 2.000 | - | 0.95 |"
    assert lines[3] == "| rmsnorm | 8x4 | 950 | 1000 | - | eager | 0.950 | - | 0.24 |"
    assert lines[4] == f"rmsnorm: ratio to the best peer, geometric mean {(2 * 0.95) ** 0.5:.3f}"


def test_failures_are_told_once_each() -> None:
    assert format_failures(example_cases()).splitlines() == [
        "nvfuser is wrong in rmsnorm 64x32: relative error 1.00e-03",
        "liger did not run rmsnorm 8x4: OSError: no",
    ]


def test_results_files_feed_the_readme(tmp_path: Path) -> None:
    assert results_table(tmp_path) == NOT_MEASURED
    where: dict[str, object] = {"gpu": "Some GPU", "date": "2026-01-02T03:04:05", "versions": {"torch": "2.0"}}
    payload: dict[str, object] = {"copy_gbps": [4000.0, 4200.0], "cases": cases_to_data(example_cases())}
    write_json(tmp_path / "norms.json", "norms", where, payload)
    table = results_table(tmp_path).splitlines()
    assert "Some GPU" in table[0] and "4100 GB/s" in table[0] and "2026-01-02" in table[0]
    assert table[-2:] == [
        "| rmsnorm | 64x32 | 3800 | 1900 | eager 1900 |",
        "| rmsnorm | 8x4 | 950 | 1000 | eager 1000 |",
    ]


def test_replace_part_wants_exactly_one_part() -> None:
    text = "a\n<!-- part -->\nold\n<!-- /part -->\nb\n"
    assert replace_part(text, "part", "new \\1\n") == "a\n<!-- part -->\nnew \\1\n<!-- /part -->\nb\n"
    with pytest.raises(ValueError, match="'other'"):
        replace_part(text, "other", "new")


def test_chart_is_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert write_chart(tmp_path / "chart.png", "title", example_cases(), ["fusedsl", "eager"], 4000.0)
    assert (tmp_path / "chart.png").read_bytes().startswith(b"\x89PNG")


def test_environment_names_the_versions() -> None:
    described = json.loads(json.dumps(describe()))
    assert described["commit"]
    assert described["versions"]["torch"] == torch.__version__
    assert described["date"].startswith("20")


def test_commit_without_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_output", lambda *command: "")
    monkeypatch.delenv("FUSEDSL_COMMIT", raising=False)
    assert environment.commit() == "unknown"
    monkeypatch.setenv("FUSEDSL_COMMIT", "abc1234")
    assert environment.commit() == "abc1234"


def test_spread_of_the_ratio(tmp_path: Path) -> None:
    def timed(peer: str, samples: list[float]) -> Entry:
        timing = Timing.of(samples)
        return Entry(peer, timing, 1e3 / timing.median_us, 1e-3, True)

    steady = Case(
        "softmax",
        (8, 4),
        "bfloat16",
        1,
        (timed("fusedsl", [1.0, 2.0, 4.0, 8.0]), timed("eager", [2.0, 4.0, 8.0, 16.0])),
    )
    assert steady.ratio_spread() == 0.0, "what slows both does not count"
    shaky = Case("softmax", (8, 4), "bfloat16", 1, (timed("fusedsl", [1.0] * 4), timed("eager", [1.0, 2.0, 2.0, 3.0])))
    assert shaky.ratio_spread() == pytest.approx(0.25)
    (data, _) = cases_to_data([shaky, example_cases()[0]])
    assert data["ratio_spread"] == pytest.approx(0.25)
    assert "samples_us" not in json.dumps(cases_to_data([shaky]))
    json.dumps(cases_to_data(example_cases()), allow_nan=False)


def test_our_own_variants_are_no_peers() -> None:
    case = Case(
        "softmax_bwd", (8, 4), "bfloat16", 1, (entry("fusedsl", 10), entry("fusedsl_bare", 30), entry("eager", 5))
    )
    best = case.best_peer()
    assert best is not None and best.peer == "eager"


def test_command_line_without_a_gpu(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert command.main(["norms", "--quick"]) == 2
    assert "norms" in capsys.readouterr().err


def test_shapes_on_the_command_line() -> None:
    options = command.parse_arguments(["norms", "--shapes", "64x32", "8x4"])
    assert options.shapes == [(64, 32), (8, 4)]
    assert command.shapes_of("norms", options.shapes) == options.shapes
    assert command.shapes_of("batchnorm", options.shapes) == []
    assert command.shapes_of("batchnorm", None) == list(SUITES["batchnorm"].shapes)
    assert command.parse_arguments(["batchnorm", "--shapes", "2x3x4x5"]).shapes == [(2, 3, 4, 5)]
    with pytest.raises(SystemExit):
        command.parse_arguments(["norms", "--shapes", "64"])


def test_a_peer_that_is_not_installed_raises_when_prepared() -> None:
    """The harness reports it; nothing is imported before."""
    if importlib.util.find_spec("nvfuser_direct"):
        pytest.skip("it is installed")
    operation, arguments = OPERATIONS[0], OPERATIONS[0].make_arguments((3, 4), torch.float32, "cpu")
    peer = next(peer for peer in PEERS if peer.name == "nvfuser")
    with pytest.raises(ImportError):
        peer.prepare(operation, arguments)
