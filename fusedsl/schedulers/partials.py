# SPDX-License-Identifier: Apache-2.0
"""Reductions split over blocks: the share of each block, and its partial results in buffers.

A buffer holds one partial result after another, each of every kept element, so that they are added in a fixed order, by
a second launch or after a barrier of all blocks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from fusedsl.schedulers.base import Workspace
from fusedsl.schedulers.combine import Accumulator, Reducer
from fusedsl.schedulers.emit import Emitter


def share_of_block(e: Emitter, axis: int, per: int) -> tuple[str, str]:
    """Texts of the first index of ``axis`` this block reduces and of the one past its last; a block has ``per``."""
    share = e.integer("share", per)
    e.line(f"begin = block_y() * {share}")
    e.line(f"end = min(begin + {share}, {e.extent(axis)})")
    return "begin", "end"


def store_partials(
    e: Emitter,
    values: Iterable[tuple[torch.dtype, str]],
    numel: int,
    place: str,
    limit: str | None = None,
    vector: str = "1",
    first: int = 0,
) -> tuple[Workspace, ...]:
    """Store what this block reduced; the buffers it goes to, one a value.

    Args:
        e: of the launch.
        values: dtypes and texts of partial results.
        numel: elements of a buffer.
        place: text of the element.
        limit: text of the elements there are from ``place`` on; None: as many as are stored.
        vector: text of the elements a thread stores.
        first: number of the first buffer.
    """
    workspaces: list[Workspace] = []
    for dtype, text in values:
        pointer = e.workspace(first + len(workspaces), dtype)
        workspaces.append(Workspace(dtype, numel))
        e.line(f"store({pointer}, {place}, {limit}, {text}, 1, 1, {vector})")
    return tuple(workspaces)


def load_partials(
    e: Emitter, dtypes: Sequence[torch.dtype], place: str, limit: str | None = None, vector: str = "1", first: int = 0
) -> list[str]:
    """Texts that read what `store_partials` stored, for the same arguments."""
    pointers = [e.workspace(first + index, dtype) for index, dtype in enumerate(dtypes)]
    return [f"load({pointer}, {place}, {limit}, 1, 1, {vector}, 0)" for pointer in pointers]


def add_partials(e: Emitter, parts: Iterable[tuple[Reducer, Accumulator]], place: str, first: int = 0) -> None:
    """Merge one element of every buffer, from number ``first`` on, into the accumulators."""
    for reducer, accumulator in parts:
        dtypes = reducer.workspace_dtypes()
        texts = load_partials(e, dtypes, place, first=first)
        first += len(dtypes)
        reducer.step(accumulator, texts[0], texts[-1])
