# SPDX-License-Identifier: Apache-2.0
"""The picture of a sweep: GB/s over the row length, a panel an operation and dtype, a colour a strategy."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.report import load_pyplot, save_figure
from benchmarks.sweep.verdict import Point


def write_chart(path: Path, title: str, points: Sequence[Point]) -> bool:
    """Write the picture; False where matplotlib is missing or there is nothing to show."""
    pyplot = load_pyplot()
    if pyplot is None or not points:
        return False
    operations = list(dict.fromkeys(p.operation for p in points))
    dtypes = list(dict.fromkeys(p.dtype for p in points))
    colours = {name: f"C{k}" for k, name in enumerate(sorted({p.strategy for p in points}))}
    size = (9 * len(dtypes), 3.6 * len(operations))
    figure, axes = pyplot.subplots(len(operations), len(dtypes), figsize=size, squeeze=False, sharex=True, sharey=True)
    for row, operation in enumerate(operations):
        for column, dtype in enumerate(dtypes):
            axis = axes[row, column]
            chosen = sorted((p for p in points if (p.operation, p.dtype) == (operation, dtype)), key=lambda p: p.length)
            copies = [p.copy_gbps for p in chosen]
            axis.plot([p.length for p in chosen], copies, color="black", linewidth=0.8, label="copy")
            for name, colour in colours.items():
                ours = [p for p in chosen if p.strategy == name]
                axis.scatter([p.length for p in ours], [p.gbps for p in ours], s=10, color=colour, label=name)
            axis.set_xscale("log")
            axis.set_title(f"{operation}, {dtype}")
            axis.set_ylabel("GB/s")
    axes[-1, 0].set_xlabel("elements of a row")
    axes[0, 0].legend(fontsize="x-small", ncols=2)
    save_figure(pyplot, figure, path, title)
    return True
