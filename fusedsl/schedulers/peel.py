# SPDX-License-Identifier: Apache-2.0
"""Rows that begin at any alignment (a packed tensor with rows of odd length): whole aligned chunks, and what is left.

The tensors of the rows are in step: their rows begin equally many elements before an aligned chunk. So one grid of
chunks serves all of them; the few elements before its first chunk and behind its last (the edges of the row) are given
to threads one by one. What all rows share (weights) is aligned itself, so a chunk of it lies across aligned ones, the
same way for a whole row; the last chunk's neighbour is left to the edge so that these accesses stay within it.
"""

from __future__ import annotations

import attrs

from fusedsl.schedulers.space import IterationSpace, vector_width

#: Rows whose accesses are at least this wide without peeling are left as they are (an estimate, not measured).
WIDE_BYTES = 8
#: Most elements of a chunk of a peeled row: its edges and the words that weights are moved by take registers.
MOST_ELEMENTS = 8


@attrs.frozen
class Grid:
    """How the tensors of a row kernel lie on one grid of aligned chunks of ``vector`` elements.

    Attributes:
        node: a tensor that is in step with the grid: the offset of its row tells where the first chunk begins.
        across: inputs whose chunks lie across aligned ones.
    """

    node: int
    across: frozenset[int]


def find_grid(space: IterationSpace, vector: int) -> Grid | None:
    """The grid that all tensors of a row can be read and written by, or None if there is none."""
    last = len(space.axes) - 1
    outputs = space.problem.graph.outputs
    packed = {i: s for i, s in space.strides.items() if s[last] == 1}
    if not packed:
        return None
    leading = max(packed, key=lambda i: sum(1 for s in packed[i] if s))
    pattern = [s % vector for s in packed[leading][:last]]
    across = set()
    for node_id, strides in packed.items():
        size = vector * space.problem.graph[node_id].tensor.dtype.itemsize
        if space.problem.layouts[node_id].alignment % min(size, 16):
            return None
        if [s % vector for s in strides[:last]] == pattern:
            continue
        if any(s % vector for s in strides[:last]) or all(strides) or node_id in outputs or size < 4:
            return None
        across.add(node_id)
    return Grid(leading, frozenset(across))


def across_inputs(space: IterationSpace, vector: int) -> frozenset[int]:
    """Inputs whose chunks lie across aligned ones."""
    grid = find_grid(space, vector)
    return grid.across if grid else frozenset()


def edge_elements(vector: int) -> int:
    """The most elements that a row has beside its chunks."""
    return 2 * vector - 1


def row_vector(space: IterationSpace, most: int) -> tuple[int, bool]:
    """Elements of an access along the rows, at most ``most``, and whether the rows are peeled for it.

    Rows are peeled where ``vector_width`` finds narrow accesses only, if they have chunks for twice the threads that
    hold the edges.
    """
    last = len(space.axes) - 1
    plain = min(vector_width(space, last), most)
    sizes = [space.problem.graph[i].tensor.dtype.itemsize for i, s in space.strides.items() if s[last] == 1]
    if not sizes or plain * min(sizes) >= WIDE_BYTES:
        return plain, False
    wide = min(16 // min(sizes), most, MOST_ELEMENTS)
    if wide <= plain or space.axes[last].extent < 2 * wide * wide or find_grid(space, wide) is None:
        return plain, False
    return wide, True


def count_chunks(extent: int, vector: int, *, peeled: bool) -> int:
    """Chunks of a row, at least 1: whole ones if the rows are peeled."""
    return max(extent // vector if peeled else -(-extent // vector), 1)
