# SPDX-License-Identifier: Apache-2.0
"""The command line from arguments to result files, with made-up times in place of a GPU."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import attrs
import pytest
import torch

from benchmarks import __main__ as command
from benchmarks.harness import Case, run_case
from benchmarks.operations import Operation, Shape
from benchmarks.peers import Peer
from benchmarks.timing import Timing


def timed_case(
    operation: Operation, shape: Shape, dtype: torch.dtype, peers: Sequence[Peer], flush: object, budget_s: float
) -> Case:
    """Values from the CPU at the shape given; the more a contestant's name weighs, the longer it takes."""
    case = run_case(operation, shape, dtype, peers, None, budget_s)
    entries = []
    for entry in case.entries:
        timing = Timing.of([float(len(entry.peer)) + k % 2 for k in range(8)])
        rate = case.traffic_bytes / timing.median_us / 1e3
        entries.append(entry if entry.note else attrs.evolve(entry, timing=timing, gbps=rate))
    return attrs.evolve(case, entries=tuple(entries))


@pytest.fixture
def no_gpu_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Some GPU")
    monkeypatch.setattr(command, "L2Flush", lambda: None)
    monkeypatch.setattr(command, "measure_copy_gbps", lambda flush: 4000.0)
    monkeypatch.setattr(command, "run_case", timed_case)


@pytest.mark.usefixtures("no_gpu_needed")
def test_a_suite_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    asked = ["norms_backward", "--shapes", "20x40", "--peers", "fusedsl", "fusedsl_bare", "eager"]
    assert command.main([*asked, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert "| op | shape | fusedsl | fusedsl_bare | eager | best peer | ratio | spread | of copy |" in printed
    document = json.loads((tmp_path / "norms_backward.json").read_text())
    assert [case["operation"] for case in document["cases"]] == ["rmsnorm_bwd", "layernorm_bwd", "softmax_bwd"]
    assert document["left_out"] == 0
    assert all(entry["correct"] for case in document["cases"] for entry in case["entries"])
    assert all(case["ratio_spread"] > 0 for case in document["cases"])
    assert (tmp_path / "norms_backward.png").exists()


@pytest.mark.usefixtures("no_gpu_needed")
def test_a_spent_budget_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["norms", "batchnorm", "host", "--budget", "0", "--out", str(tmp_path)]) == 0
    assert "norms: nothing measured" in capsys.readouterr().out
    assert list(tmp_path.iterdir()) == []
