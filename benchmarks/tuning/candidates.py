# SPDX-License-Identifier: Apache-2.0
"""The parameters that are tried: one function a kind of parameters, and other spellings of loads and stores."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import attrs

from fusedsl.numba_cuda.device import DeviceProperties
from fusedsl.schedulers.base import KernelPlan
from fusedsl.schedulers.column_params import PersistentColumnParams
from fusedsl.schedulers.columns import ColumnParams
from fusedsl.schedulers.inner_outer_persistent import InnerOuterParams
from fusedsl.schedulers.inner_outer_shared import SharedRows
from fusedsl.schedulers.pointwise import PointwiseParams
from fusedsl.schedulers.row_params import RowParams


def row_candidates(columns: int, base: RowParams) -> Iterator[RowParams]:
    """Rows in registers: 16 to 64 elements a thread, clusters, rows a block, what is loaded early or computed again."""
    for threads, cluster in itertools.product((32, 64, 128, 256, 512), (1, 2, 4, 8)):
        batch, rest = divmod(columns, threads * cluster * base.vector)
        elements = batch * base.vector
        if rest or not 16 <= elements <= 64 or (cluster > 1 and (columns < 16384 or threads < 256)):
            continue
        if threads * cluster > 2 * 256 * max(columns // 8192, 1):
            continue
        for again, prefetch in itertools.product((False, True), repeat=2):
            if (again or prefetch) and (elements < 64 or again):
                rows = max(64 // threads, 1)
                yield RowParams(
                    threads, rows, base.vector, batch, "register", True, prefetch, cluster=cluster, again=again
                )


def shared_candidates(columns: int, base: RowParams) -> Iterator[RowParams]:
    """Rows in shared memory: block sizes, accesses in flight, clusters."""
    cluster = max(columns // 32768, 1)
    clusters = {cluster, min(2 * cluster, 16)} if columns > 8192 else {1}
    for threads, batch, cluster in itertools.product((256, 512), (1, 2), sorted(clusters)):
        tile = threads * batch * base.vector * cluster
        tiles = -(-columns // tile)
        if tile > columns or tiles * tile // cluster * 2 > 220 << 10:
            continue
        exact = tiles * tile == columns
        yield RowParams(threads, 1, base.vector, batch, "shared", exact, cluster=cluster)


def pointwise_candidates(base: PointwiseParams) -> Iterator[PointwiseParams]:
    """Block sizes and batches."""
    for threads, batch in itertools.product((64, 128, 256), (1, 2, 4)):
        if base.lines == 1 and base.threads == 256:
            yield attrs.evolve(base, threads=threads, batch=batch)
        elif threads <= base.threads:
            for lines in (1, 2, 4):
                if threads * lines >= 64:
                    yield attrs.evolve(base, threads=threads, lines=lines, batch=batch)


def column_candidates(base: ColumnParams) -> Iterator[ColumnParams]:
    """Block shapes and splits."""
    for threads, lines, batch in itertools.product((16, 32), (8, 16), (2, 4, 8)):
        for factor in (0.5, 1, 2):
            yield attrs.evolve(base, threads=threads, lines=lines, batch=batch, split=max(int(base.split * factor), 1))


def persistent_column_candidates(
    columns: int, base: PersistentColumnParams, device: DeviceProperties
) -> Iterator[PersistentColumnParams]:
    """Block shapes, tiles and copies under way; as many blocks as are resident at once; without copies, too.

    A thread and a block's shared memory hold as many elements as those of ``base`` do at most (one chunk fewer in wider
    blocks, whose partial results take more): more were seen to spill, and so were 1024 threads.
    """
    room, ahead = base.resident * base.columns, (base.stages - 1) * base.chunk * base.columns
    for threads, size, part in itertools.product((8, 16, 32), (512, 256), (1, 2, 4)):
        wide, lines, batch = threads * base.vector, size // threads, base.batch // part
        if wide > max(columns, base.columns) or lines * threads > base.lines * base.threads or batch < 1:
            continue
        if (size == 256 and part > 1) or (part == 4 and threads != base.threads):
            continue
        blocks = max(device.multiprocessors // -(-columns // wide), 1) if base.blocks > 1 else 1
        one = attrs.evolve(base, threads=threads, lines=lines, batch=batch, blocks=blocks, exact=columns % wide == 0)
        places = room // (wide * one.chunk) - (wide > base.columns)
        least = -(-ahead // (wide * one.chunk)) + 1
        for stages in (least, 2 * least - 1 if least > 2 else 3):
            if stages <= places:
                yield attrs.evolve(one, resident=places * one.chunk, stages=stages)
        if size == 512 and part == 1:
            yield attrs.evolve(one, resident=0, stages=1)


def inner_outer_candidates(
    columns: int, base: InnerOuterParams, rows: int, device: DeviceProperties
) -> Iterator[InnerOuterParams]:
    """Threads and batches that hold a row, blocks a multiprocessor, and shapes of the kernels that add partial sums."""
    for threads, vector in itertools.product(
        (32, 64, 128, 256, 512, 1024), sorted({base.row.vector, base.row.vector // 2})
    ):
        if vector == 0:
            continue
        batch = -(-columns // (threads * vector))
        if batch * vector > 32 or threads * vector > 2 * columns:
            continue
        held, exact = base.row, threads * batch * vector == columns
        plain = RowParams(threads, min_blocks=1) if isinstance(held, SharedRows) else held
        row = attrs.evolve(plain, threads=threads, vector=vector, batch=batch, exact=exact)
        for many in (1, 2, 3, 4, 6, 8, 12, 16):
            blocks = many * device.multiprocessors
            if 256 <= threads * many <= device.max_threads_per_sm and blocks <= rows:
                yield attrs.evolve(base, row=row, blocks=blocks)
    if isinstance(base.row, SharedRows):
        for shared, walkers in shared_rows_candidates(columns, base.row, device):
            yield attrs.evolve(base, row=shared, blocks=min(rows, walkers))
    for threads, lines, batch in itertools.product((8, 16, 32), (8, 16, 32), (1, 2, 4)):
        if threads * lines >= 128:
            yield attrs.evolve(base, outer=attrs.evolve(base.outer, threads=threads, lines=lines, batch=batch))


def shared_rows_candidates(
    columns: int, base: SharedRows, device: DeviceProperties
) -> Iterator[tuple[SharedRows, int]]:
    """Threads, blocks, tiles and clusters that have no more columns a multiprocessor than ``base``, which is known to
    fit; with as many clusters as are certainly resident, and as there would be if their blocks could lie anywhere."""
    clusters = [c for c in (1, 2, 4, 8, 16) if c <= device.max_cluster]
    sizes = sorted({base.batch, max(base.batch // 2, 1)})
    for cluster, (threads, blocks), size in itertools.product(clusters, ((256, 2), (256, 1), (512, 1)), sizes):
        one = attrs.evolve(base, threads=threads, batch=size, tiles=1, cluster=cluster, min_blocks=blocks)
        row = attrs.evolve(one, tiles=-(-columns // one.held))
        held = row.tiles * row.batch * row.vector
        if row.part * blocks <= base.part * base.min_blocks and held <= 64:
            walkers = {device.resident_clusters(cluster, blocks), max(device.multiprocessors * blocks // cluster, 1)}
            exact = row.held == columns
            for whole, count in itertools.product({False, exact and cluster > 1}, walkers):
                yield attrs.evolve(row, exact=exact, whole=whole), count


def candidates(columns: int, base: Any, rows: int, device: DeviceProperties) -> list[Any]:
    """The parameters to try, the heuristic's own first."""
    found: list[Any]
    if isinstance(base, InnerOuterParams):
        found = list(inner_outer_candidates(columns, base, rows, device))
    elif isinstance(base, PersistentColumnParams):
        found = list(persistent_column_candidates(columns, base, device))
    elif isinstance(base, ColumnParams):
        found = list(column_candidates(base))
    elif isinstance(base, PointwiseParams):
        found = list(pointwise_candidates(base))
    elif base.storage == "register":
        found = [*row_candidates(columns, base), *(shared_candidates(columns, base) if columns >= 16384 else ())]
    elif base.storage == "shared":
        found = [*row_candidates(columns, base), *shared_candidates(columns, base)]
    else:
        found = [
            attrs.evolve(base, threads=t, batch=n, rows=max(r // t, 1), exact=columns % (t * n * base.vector) == 0)
            for t in (32, 64, 128, 256, 512)
            for n in (1, 2, 4)
            for r in (128, 256)
            if base.split == 1
        ]
        if columns <= 16384:
            found += row_candidates(columns, base)
    return list(dict.fromkeys([base, *found]))


#: Cache hints, and another cluster barrier, to try on the heuristic's choice: label, spelling, other spelling.
HINTS = (
    ("plain loads", " load_stream(", " load("),
    ("plain loads", "(load_stream(", "(load("),
    ("plain loads", "load_strided_stream(", "load_strided("),
    ("plain stores", "store_stream(", "store("),
    ("plain stores", "store_strided_stream(", "store_strided("),
    ("streamed stores", " store(", " store_stream("),
    ("ordering barrier", "cluster_arrive_relaxed()", "cluster_arrive()"),
)


def respell(plan: KernelPlan, old: str, new: str) -> KernelPlan:
    """The plan with one function of its kernel texts replaced."""
    launches = tuple(
        attrs.evolve(run, source=attrs.evolve(run.source, text=run.source.text.replace(old, new)))
        for run in plan.launches
    )
    return attrs.evolve(plan, launches=launches)
