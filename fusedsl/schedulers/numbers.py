# SPDX-License-Identifier: Apache-2.0
"""Text of tiles that are made from where their elements stand: positions along a loop, and random numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from fusedsl.analysis.domains import domain_map
from fusedsl.graph.graph import Node
from fusedsl.graph.random import chunk_of
from fusedsl.graph.types import dtype_name

if TYPE_CHECKING:
    from fusedsl.schedulers.emit import Emitter

#: Text of a tile, and whether it varies along the tile's batch axis and vector axis.
Numbered = tuple[str, bool, bool]


def numbered_text(e: Emitter, node: Node) -> Numbered:
    """The tile of an ``iota`` or ``random`` node at the thread's origin."""
    return _positions(e, node) if node.op == "iota" else _random(e, node)


def _positions(e: Emitter, node: Node) -> Numbered:
    """The thread's index on the loop, and how far each element of the tile lies from it."""
    cls = domain_map(e.graph).dims[node.id][node.attribute("dim")]
    axis = next(a for a, found in enumerate(e.space.axes) if cls in found.classes)
    tile, index, dtype = e.tile, e.index[axis], dtype_name(node.tensor.dtype)
    batch, vector = axis == tile.batch_axis, axis == tile.vector_axis
    if not batch and not vector:
        return f"full(1, {index}, {dtype})", False, False
    chunks = f"{e.constant('BATCH', tile.batch)}, {e.constant('STEP', tile.step)}" if batch else "1, 1"
    width = e.constant("VECTOR", tile.vector) if vector else "1"
    text = f"iota({chunks}, {width}, {dtype}) + {index}"
    if e.edge is not None:
        text = f"join({text}, full(1, {e.edge.column}, {dtype}))"
    return text, batch, vector


def _random(e: Emitter, node: Node) -> Numbered:
    """Random numbers of the tile's elements, which are numbered as in a packed tensor of the node's shape.

    One Philox serves four elements where they lie together in the stream: where every stride is a multiple of 4.
    """
    tile, counts = e.tile, e.space.counts[node.id]
    numel = 1 + sum(s * (axis.extent - 1) for s, axis in zip(counts, e.space.axes, strict=True))
    chunk = chunk_of(numel, node.attribute("itemsize"))
    strides = [str(s) if s < 2 else e.integer(f"count{node.id}_s{axis}", s) for axis, s in enumerate(counts)]
    batch, vector = counts[tile.batch_axis] != 0, counts[tile.vector_axis] != 0
    width = tile.vector if vector else 1
    along = counts[tile.batch_axis] * tile.step if batch else 0
    outer = [s for a, s in enumerate(counts) if a != tile.vector_axis]
    aligned = counts[tile.vector_axis] == 1 and not any(n % 4 for n in (width, chunk, along, *outer))
    step = f"{e.constant('STEP', tile.step)} * {strides[tile.batch_axis]}" if batch else "0"
    place = [
        e.constant("BATCH", tile.batch) if batch else "1",
        step.removesuffix(" * 1"),
        e.constant("VECTOR", width) if vector else "1",
        strides[tile.vector_axis] if vector else "0",
    ]

    def drawn(place: list[str], aligned: bool) -> str:
        terms = [e.index[a] if s == 1 else f"{e.index[a]} * {strides[a]}" for a, s in enumerate(counts) if s]
        draw = [*(e.scalar(i, torch.int64) for i in node.inputs), str(chunk), str(aligned), str(numel >= 1 << 31)]
        return f"random_uniform({', '.join([' + '.join(terms) or '0', *place, *draw])})"

    if e.edge is None or not (batch or vector):
        return drawn(place, aligned), batch, vector
    chunks = drawn(place, aligned=False)  # a row's chunks begin anywhere in its stream
    with e.edge.located(e):
        return f"join({chunks}, {drawn(['1', '0', '1', '0'], aligned=False)})", batch, vector
