# SPDX-License-Identifier: Apache-2.0
"""Text of the element that a thread of a peeled row has beside its chunks: the last of its tile."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from fusedsl.schedulers.emit import Emitter


@attrs.frozen
class Edge:
    """Where the element is.

    Attributes:
        column: text of its index along the row.
        limit: text of how far the row goes from there: nothing is read or written unless it is positive.
        across: inputs whose chunks lie across aligned ones.
        held: variables that hold the element of inputs which have been loaded.
    """

    column: str
    limit: str
    across: frozenset[int] = frozenset()
    held: Mapping[int, str] = attrs.field(factory=dict)

    @contextlib.contextmanager
    def located(self, e: Emitter) -> Iterator[None]:
        """Offsets are those of the element."""
        last = e.tile.vector_axis
        chunks, e.index[last] = e.index[last], self.column
        yield
        e.index[last] = chunks

    def load(self, e: Emitter, node_id: int, fill: str) -> str:
        """Text that reads the element of an input."""
        if node_id in self.held:
            return f"where(chunk_mask({self.limit}, 1, 1, 1), {self.held[node_id]}, {fill})"
        with self.located(e):
            return f"load({e.pointer(node_id)}, {e.offset(node_id)}, {self.limit}, 1, 1, 1, {fill})"

    def store(self, e: Emitter, node_id: int, text: str) -> None:
        """Write the element of an output."""
        with self.located(e):
            e.line(f"store({e.pointer(node_id)}, {e.offset(node_id)}, {self.limit}, {text}, 1, 1, 1)")
