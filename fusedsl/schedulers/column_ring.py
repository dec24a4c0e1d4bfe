# SPDX-License-Identifier: Apache-2.0
"""Rows of a block in shared memory: the first chunks stay there, the others pass through the last places.

A chunk is what the block's tiles cover at a time. Chunk c has place c while there are places; the last ``stages``
places are a ring for the rest, so as many copies are under way. Passes go to and fro: what a pass leaves in the ring is
what the next one begins with, so every place saves a read in every pass.

A thread copies what it will read itself (``cp.async``), so no barrier is needed: it waits for its own copies, and a
copy to a place is issued after the instructions that read the place. One group is closed a chunk, empty or not, so a
chunk has landed when at most ``stages - 1`` younger groups are under way.
"""

from __future__ import annotations

import functools

from fusedsl.schedulers.column_params import PersistentColumnParams, resident_places
from fusedsl.schedulers.emit import Emitter
from fusedsl.schedulers.space import IterationSpace
from fusedsl.schedulers.text import dtype_marker


class Ring:
    """Writes the copies of one kernel. ``chunk`` is the chunk that a pass is at, ``place`` its place.

    The text around it sets ``begin``, ``end`` (the block's rows), ``whole`` and ``chunks`` (whole chunks, and all), and
    ``inside`` where the columns are not exact.
    """

    def __init__(self, e: Emitter, space: IterationSpace, params: PersistentColumnParams) -> None:
        self.e, self.params = e, params
        (self.row,) = space.reduced
        self.places = resident_places(space, params)[0]
        self.arrays: dict[int, tuple[str, str]] = {}

    def start(self) -> None:
        """Begin to copy the first chunks."""
        e, p = self.e, self.params
        for node_id, offset in self.places.items():
            dtype = e.graph[node_id].tensor.dtype
            name = e.fresh(f"{e.graph[node_id].name}_smem")
            e.line(f"{name} = dynamic_shared({dtype_marker(dtype)}, 0)")
            base = e.integer(f"{e.pointer(node_id)[:-4]}_base", offset // dtype.itemsize) if offset else "0"
            self.arrays[node_id] = name, base
        count = p.resident // p.chunk
        assert count >= p.stages, "there is a place for every copy under way"
        e.integer("places", count)
        e.integer("stay", count - p.stages)
        e.constant("PLACE", p.chunk * p.columns)
        e.line(f"own = thread_y() * {e.constant('COLUMNS', p.columns)} + slot" if p.lines > 1 else "own = slot")
        e.line("place = 0")
        with e.block(f"for coming in range({e.constant('STAGES', p.stages)}):"):
            self.copy("coming", ragged=True)
            e.line("async_commit()")

    def use(self) -> None:
        """From here on tiles are read from shared memory, at ``place``."""
        for node_id in self.arrays:
            self.e.reader[node_id] = functools.partial(self.read, node_id)

    def read(self, node_id: int) -> str:
        """Text that reads a tile of an input."""
        e, p = self.e, self.params
        name, base = self.arrays[node_id]
        batch, vector = e.constant("BATCH", p.batch), e.constant("VECTOR", p.vector)
        distance = e.constant("LINE_STEP", p.lines * p.columns)
        index = "place * PLACE + own" if base == "0" else f"{base} + place * PLACE + own"
        return f"shared_load_tile({name}, {index}, {batch}, {distance}, {vector})"

    def wait(self) -> None:
        """Wait for the chunk at ``place``."""
        self.e.line(f"async_wait({self.params.stages - 1})")

    def step_back(self) -> None:
        """To the place of ``chunk`` from that of the next one."""
        self.e.line("place = place - 1 if place > stay or chunk < stay else places - 1")

    def step_on(self) -> None:
        """From the place of ``chunk`` to that of the next one."""
        self.e.line("place = place + 1 if place + 1 < places else stay")

    def follow(self, *, first: bool, backwards: bool) -> None:
        """Begin to copy the chunk that the pass needs ``stages`` chunks later, if it is in no place."""
        e = self.e
        stages = e.constant("STAGES", self.params.stages)
        if backwards:
            e.line(f"coming = chunk - {stages}")
            with e.block("if coming >= stay:"):
                self.copy("place")
        else:
            e.line(f"coming = chunk + {stages}")
            if first:
                e.line(f"there = place + {stages} if chunk < stay else place")
                self.copy("there", ragged=True)
            else:
                with e.block("if chunk >= stay:"):
                    self.copy("place", ragged=True)
        e.line("async_commit()")

    def copy(self, place: str, *, ragged: bool = False) -> None:
        """Begin to copy chunk ``coming``; ``ragged``: it may be the last one, or beyond."""
        e, exact = self.e, self.params.exact
        with e.block("if coming < whole:" if ragged else None):
            self._copy_rows(place, None if exact else "inside")
        if ragged:
            with e.block("elif coming < chunks:"):
                self._copy_rows(place, "end - copied" + ("" if exact else " if columns > 0 else 0"))

    def _copy_rows(self, place: str, limit: str | None) -> None:
        e, p = self.e, self.params
        batch, step, vector = e.constant("BATCH", p.batch), e.constant("STEP", p.lines), e.constant("VECTOR", p.vector)
        distance, index = e.constant("LINE_STEP", p.lines * p.columns), dict(e.index)
        line = " + thread_y()" if p.lines > 1 else ""
        e.line(f"copied = begin + coming * {e.constant('CHUNK', p.chunk)}{line}")
        e.index[self.row] = "copied"
        if limit is not None and limit != "inside":
            e.line(f"limit = {limit}")
            limit = "limit"
        e.forget_offsets()
        for node_id, (name, base) in self.arrays.items():
            to = f"{place} * PLACE + own" if base == "0" else f"{base} + {place} * PLACE + own"
            along = f"{step} * {e.stride(node_id, self.row)}"
            source = f"{e.pointer(node_id)}, {e.offset(node_id)}, {limit}"
            e.line(f"async_copy_strided({name}, {to}, {distance}, {source}, {batch}, {step}, {along}, {vector})")
        e.forget_offsets()
        e.index = index
