# SPDX-License-Identifier: Apache-2.0
"""What decides the text of a row kernel, and the choices that schedulers share."""

from __future__ import annotations

from typing import Literal

import attrs

from fusedsl.schedulers.peel import count_chunks
from fusedsl.schedulers.space import IterationSpace, pow2_at_least


@attrs.frozen(repr=False)
class RowParams:
    """What decides the text of a row kernel.

    Attributes:
        threads: threads along a row.
        rows: rows a block.
        vector: elements of one access.
        batch: accesses a thread has in flight.
        storage: where a row stays between the stages of its reductions: "register", "shared" or "stream" (it does not).
        exact: threads * vector * batch is the row length: nothing is masked.
        prefetch: load every input before the first reduction, weights too ("register"; the others load nothing ahead).
        again: what the row's results need is computed again from its inputs, which stay as they were loaded
            ("register"; 16-bit inputs take half the registers so).
        split: blocks a row is spread over; partial results are finished by a second kernel.
        cluster: blocks of a cluster that share a row ("register" and "shared").
        min_blocks: blocks a multiprocessor should hold.
        peeled: rows begin at any alignment: chunks are aligned all the same, and each thread has one element of the
            row's edges besides (see :mod:`~fusedsl.schedulers.peel`).
        lines: threads along the outer of two reduced loops ("register"): a row is ``lines`` lines of ``columns``
            threads, and the batch goes along the outer loop.
        grid: blocks of a cooperative launch that share a row ("stream").
    """

    threads: int
    rows: int = 1
    vector: int = 1
    batch: int = 1
    storage: Literal["register", "shared", "stream"] = "register"
    exact: bool = False
    prefetch: bool = attrs.field()
    split: int = 1
    cluster: int = 1
    min_blocks: int | None = None
    again: bool = False
    peeled: bool = False
    lines: int = 1
    grid: int = 1

    def __repr__(self) -> str:
        rare = {"again": False, "peeled": False, "lines": 1, "grid": 1}
        shown = {a.name: getattr(self, a.name) for a in attrs.fields(RowParams)}
        fields = [f"{name}={value!r}" for name, value in shown.items() if rare.get(name) != value or name not in rare]
        return f"RowParams({', '.join(fields)})"

    @prefetch.default
    def _in_registers(self) -> bool:
        return self.storage == "register"

    @property
    def columns(self) -> int:
        """Threads along the innermost loop."""
        return self.threads // self.lines

    @property
    def step(self) -> int:
        return self.threads * self.vector

    @property
    def tile(self) -> int:
        return self.step * self.batch


#: Elements of a row that a thread holds while the block has at most 256 threads.
ELEMENTS_PER_THREAD = 16


def resident_row(
    space: IterationSpace, vector: int, elements: int = ELEMENTS_PER_THREAD, *, peeled: bool = False
) -> RowParams:
    """Parameters for a row in registers: ``elements`` a thread, then more a thread; short rows several to a block."""
    extent = space.axes[-1].extent
    chunks = count_chunks(extent, vector, peeled=peeled)
    threads = min(pow2_at_least(chunks), 32)
    while threads < 256 and -(-chunks // threads) * vector > elements:
        threads *= 2
    batch = -(-chunks // threads)
    rows = max(64 // threads, 1) if space.kept else 1
    exact = not peeled and threads * batch * vector == extent
    return RowParams(threads, rows, vector, batch, exact=exact, peeled=peeled)


def shared_inputs(space: IterationSpace) -> tuple[int, ...]:
    """Inputs that vary over row and rows: what is worth a shared copy. They must be packed along the row."""
    return tuple(i for i in space.problem.graph.inputs if all(space.strides[i]))
