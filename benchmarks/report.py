# SPDX-License-Identifier: Apache-2.0
"""Prints results as tables and writes them as JSON and, where matplotlib is installed, as a chart."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from benchmarks.harness import Case


def geometric_mean(values: Sequence[float]) -> float:
    """Geometric mean; NaN of nothing."""
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def _number(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"


def format_table(cases: Sequence[Case], peers: Sequence[str], copy_gbps: float) -> str:
    """GB/s of minimal traffic for every case and peer, with fusedsl's ratio to the best peer and to the copy rate.

    ``!`` after a number marks wrong values; ``-`` a peer that did not run; "spread" is the interquartile range of the
    ratio over its median.
    """
    lines = [
        "| op | shape | " + " | ".join(peers) + " | best peer | ratio | spread | of copy |",
        "|---|---|" + "---|" * (len(peers) + 4),
    ]
    for case in cases:
        cells = []
        for peer in peers:
            entry = case.entry(peer)
            cells.append("-" if entry is None else f"{entry.gbps:.0f}" + ("" if entry.correct else "!"))
        ours, best = case.entry("fusedsl"), case.best_peer()
        of_copy = ours.gbps / copy_gbps if ours is not None else math.nan
        shape = "x".join(map(str, case.shape))
        ratio = [_number(case.ratio(), 3), _number(case.ratio_spread(), 3)]
        row = [case.operation, shape, *cells, "-" if best is None else best.peer, *ratio, _number(of_copy, 2)]
        lines.append("| " + " | ".join(row) + " |")
    for operation in dict.fromkeys(case.operation for case in cases):
        ratios = [case.ratio() for case in cases if case.operation == operation]
        known = [r for r in ratios if not math.isnan(r)]
        lines.append(f"{operation}: ratio to the best peer, geometric mean {_number(geometric_mean(known), 3)}")
    return "\n".join(lines)


def format_failures(cases: Sequence[Case]) -> str:
    """One line for each reason a peer did not run or gave wrong values."""
    lines: dict[str, None] = {}
    for case in cases:
        where = f"{case.operation} {'x'.join(map(str, case.shape))}"
        for entry in case.entries:
            if entry.note and entry.note != "NotImplementedError: no such operation":
                lines[f"{entry.peer} did not run {where}: {entry.note}"] = None
            elif entry.timing is not None and not entry.correct:
                lines[f"{entry.peer} is wrong in {where}: relative error {entry.error:.2e}"] = None
    return "\n".join(lines)


def write_json(path: Path, suite: str, environment: dict[str, object], payload: dict[str, object]) -> None:
    """Write one run: the suite's name, the environment and the payload."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {"suite": suite, "environment": environment, **payload}
    path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def cases_to_data(cases: Sequence[Case]) -> list[dict[str, object]]:
    """Plain data for JSON, without the single samples; a ratio that is not known is None."""
    found: list[dict[str, object]] = []
    for case in cases:
        numbers = {"ratio": case.ratio(), "ratio_spread": case.ratio_spread()}
        known = {name: None if math.isnan(value) else value for name, value in numbers.items()}
        found.append({**attrs.asdict(case, filter=lambda attribute, _: attribute.name != "samples_us"), **known})
    return found


def write_chart(path: Path, title: str, cases: Sequence[Case], peers: Sequence[str], copy_gbps: float) -> bool:
    """Bars of GB/s, one panel an operation, the copy rate as a line; False where matplotlib is missing."""
    pyplot = load_pyplot()
    if pyplot is None:
        return False
    operations = list(dict.fromkeys(case.operation for case in cases))
    figure, axes = pyplot.subplots(len(operations), 1, figsize=(11, 3.2 * len(operations)), squeeze=False)
    for axis, operation in zip(axes[:, 0], operations, strict=True):
        chosen = [case for case in cases if case.operation == operation]
        width = 0.8 / len(peers)
        for index, peer in enumerate(peers):
            entries = [case.entry(peer) for case in chosen]
            heights = [0.0 if entry is None else entry.gbps for entry in entries]
            places = [k + (index - (len(peers) - 1) / 2) * width for k in range(len(chosen))]
            axis.bar(places, heights, width, label=peer)
        axis.axhline(copy_gbps, color="black", linewidth=0.8, linestyle="--", label="copy")
        axis.set_xticks(range(len(chosen)), ["x".join(map(str, case.shape)) for case in chosen])
        axis.set_ylabel("GB/s")
        axis.set_title(operation)
    axes[0, 0].legend(ncols=len(peers) + 1, fontsize="small", loc="lower right")
    save_figure(pyplot, figure, path, title)
    return True


def load_pyplot() -> Any | None:
    """matplotlib's pyplot, drawing to files; None where matplotlib is missing."""
    try:
        import matplotlib as mpl

        mpl.use("Agg")
        from matplotlib import pyplot
    except ImportError:
        return None
    return pyplot


def save_figure(pyplot: Any, figure: Any, path: Path, title: str) -> None:
    """Write a finished picture to a file and forget it."""
    figure.suptitle(title)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
