# SPDX-License-Identifier: Apache-2.0
"""Rewrites the generated parts of README.md: the kernel of its example, and the table of the committed results.

``python -m benchmarks.readme`` needs no GPU.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import torch

from benchmarks.peers import OURS
from benchmarks.suites import SUITES
from examples.layer_norm import layer_norm

ROOT = Path(__file__).parent.parent
NOT_MEASURED = "Not measured yet: run `make benchmark` on a machine with an NVIDIA GPU."


def replace_part(text: str, name: str, body: str) -> str:
    """``text`` with what stands between ``<!-- name -->`` and ``<!-- /name -->`` replaced; both marks must be there."""
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    replaced, count = pattern.subn(lambda match: match[1] + body.rstrip("\n") + "\n" + match[2], text)
    if count != 1:
        raise ValueError(f"README.md has {count} parts named {name!r}, expected 1")
    return replaced


def kernel_text() -> str:
    """The kernel source of the example as Markdown."""
    x = torch.empty(4096, 1024, dtype=torch.bfloat16, device="meta")
    row = torch.empty(1024, dtype=torch.bfloat16, device="meta")
    return f"```python\n{layer_norm.source(x, row, row).strip()}\n```"


def _row(case: dict[str, Any]) -> str:
    """One line of the table: fusedsl, eager, and the best other contestant with right values."""
    entries = {entry["peer"]: entry for entry in case["entries"] if entry["timing"] is not None}
    ours = entries.pop("fusedsl", None)
    right = [entry for entry in entries.values() if entry["correct"] and entry["peer"] not in OURS]
    best = max(right, key=lambda entry: entry["gbps"], default=None)
    shape = "x".join(map(str, case["shape"]))
    cells = ["-" if entry is None else f"{entry['gbps']:.0f}" for entry in (ours, entries.get("eager"))]
    best_cell = "-" if best is None else f"{best['peer']} {best['gbps']:.0f}"
    return f"| {case['operation']} | {shape} | {cells[0]} | {cells[1]} | {best_cell} |"


def results_table(folder: Path) -> str:
    """The committed results as one Markdown table, or a line that says there are none."""
    lines: list[str] = []
    for suite in SUITES:
        path = folder / f"{suite}.json"
        if not path.exists():
            continue
        document = json.loads(path.read_text(encoding="utf-8"))
        environment = document["environment"]
        if not lines:
            torch_version = environment["versions"]["torch"]
            copy = sum(document["copy_gbps"]) / len(document["copy_gbps"])
            lines = [
                f"GB/s of minimal traffic, bfloat16, {environment['gpu']}, torch {torch_version}, "
                f"{environment['date'][:10]}; a copy reaches {copy:.0f} GB/s. `make benchmark`",
                "",
                "| op | shape | fusedsl | eager | best peer |",
                "|---|---|---|---|---|",
            ]
        lines += [_row(case) for case in document["cases"]]
    return "\n".join(lines) if lines else NOT_MEASURED


def main() -> None:
    """Rewrite README.md in place."""
    path = ROOT / "README.md"
    text = path.read_text(encoding="utf-8")
    text = replace_part(text, "kernel", kernel_text())
    text = replace_part(text, "results", results_table(ROOT / "benchmarks" / "results"))
    path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
