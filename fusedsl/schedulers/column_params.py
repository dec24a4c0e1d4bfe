# SPDX-License-Identifier: Apache-2.0
"""What decides the text of a persistent column kernel, and what its problem asks of one: passes, shared memory."""

from __future__ import annotations

import attrs
import torch

from fusedsl.analysis.budgets import place_arrays
from fusedsl.analysis.domains import domain_map
from fusedsl.analysis.edges import upstream
from fusedsl.analysis.reductions import find_reductions
from fusedsl.graph.types import compute_dtype
from fusedsl.schedulers.base import Problem
from fusedsl.schedulers.combine import SPELLINGS
from fusedsl.schedulers.joint import Joint, find_moments, rounds
from fusedsl.schedulers.space import IterationSpace

#: Rows for each one that rounding a block's share up may add.
_PADDING = 32


@attrs.frozen
class PersistentColumnParams:
    """What decides the text of a persistent column kernel; ``blocks`` and ``resident`` only by whether they are used.

    ``resident`` is at least ``stages`` times ``lines * batch`` where it is used.

    Attributes:
        threads: threads along the columns.
        lines: threads along the rows, a power of two.
        vector: columns a thread owns.
        batch: rows of a thread's tile.
        blocks: blocks that share a column; more than 1: a cooperative launch.
        resident: rows of a block's share that shared memory holds, a multiple of lines * batch; 0: rows are not copied.
        stages: how many times lines * batch rows are on their way to shared memory at once.
        exact: the column count is a multiple of threads * vector.
    """

    threads: int
    lines: int
    vector: int = 1
    batch: int = 1
    blocks: int = 1
    resident: int = 0
    stages: int = 1
    exact: bool = False

    @property
    def columns(self) -> int:
        return self.threads * self.vector

    @property
    def chunk(self) -> int:
        """Rows of a block's tiles: what it works on at a time."""
        return self.lines * self.batch

    @property
    def merged(self) -> int:
        """Lines of one warp, whose parts meet by shuffles."""
        whole_warps = self.threads * self.lines % 32 == 0
        return max(32 // self.threads, 1) if whole_warps else 1

    @property
    def form(self) -> str:
        """What stands in the text's header: the parameters without the numbers that are not in the text."""
        where = ("rows shared by blocks", "rows of one block")[self.blocks == 1]
        kept = f"stages={self.stages}" if self.resident else "no resident rows"
        return (
            f"threads={self.threads}, lines={self.lines}, vector={self.vector}, batch={self.batch}, "
            f"exact={self.exact}, {where}, {kept}"
        )


def resident_inputs(space: IterationSpace) -> list[int]:
    """Inputs that vary over all rows and columns: those that shared memory keeps."""
    row, column = space.reduced[-1], len(space.axes) - 1
    return [i for i in space.problem.graph.inputs if space.strides[i][row] and space.strides[i][column]]


def row_outputs(space: IterationSpace) -> list[int]:
    """Outputs that vary along the rows."""
    return [i for i in dict.fromkeys(space.problem.graph.outputs) if space.strides[i][space.reduced[-1]]]


def passes(space: IterationSpace) -> int:
    """How often the kernel passes over the rows."""
    graph = space.problem.graph
    late = any(find_reductions(graph).stage[i] for i in row_outputs(space))
    return len(rounds(graph, pairs(space.problem))) + late


def column_inputs(space: IterationSpace) -> list[int]:
    """Inputs that all rows share and that something which varies along the rows needs."""
    graph, (row,) = space.problem.graph, space.reduced
    varies = domain_map(graph).varies
    classes = set(space.axes[row].classes)
    needed = 0
    for node in graph:
        if node.is_tensor and classes & set(varies[node.id]):
            needed |= upstream(graph)[node.id]
    return [i for i in graph.inputs if needed >> i & 1 and not space.strides[i][row]]


def pairs(problem: Problem) -> list[Joint]:
    """Reductions that are taken in pairs; eager torch rounds between the two."""
    graph = problem.graph
    if problem.numerics == "eager":
        return []
    return [joint for joint in find_moments(graph) if _is_floating(graph[joint.source].tensor.dtype)]


def _is_floating(dtype: torch.dtype) -> bool:
    return compute_dtype(dtype).is_floating_point


def part_lines(params: PersistentColumnParams) -> int:
    """Lines whose parts are in shared memory at once: a half of the warps', and a half of those in a second area."""
    lines = params.lines // params.merged
    return max(lines // 2 + lines // 4, 1)


def part_bytes(problem: Problem) -> int:
    """Shared memory that the parts of one line take a column, in the stage that takes most."""
    graph = problem.graph

    def size(entry: int | Joint) -> int:
        reduction = graph[entry.first if isinstance(entry, Joint) else entry]
        item = compute_dtype(graph[reduction.inputs[0]].tensor.dtype).itemsize
        if isinstance(entry, Joint):
            return 2 * item
        return item + (torch.int64.itemsize if SPELLINGS[reduction.op].pair else 0)

    return max(sum(map(size, entries)) for entries in rounds(graph, pairs(problem)))


def share_rows(space: IterationSpace, params: PersistentColumnParams) -> int:
    """Rows of a block: whole tiles of rows, so that only the last block has a part of one, if that costs little."""
    share = -(-space.axes[space.reduced[0]].extent // params.blocks)
    whole = -(-share // params.chunk) * params.chunk
    return whole if (whole - share) * _PADDING <= share else share


def resident_places(space: IterationSpace, params: PersistentColumnParams) -> tuple[dict[int, int], int]:
    """Where in dynamic shared memory every resident input begins, and the bytes of all."""
    graph, elements = space.problem.graph, params.resident * params.columns
    kept = resident_inputs(space) if params.resident else []
    return place_arrays({i: elements * graph[i].tensor.dtype.itemsize for i in kept})
