# SPDX-License-Identifier: Apache-2.0
"""Everything the analysis says about one segment at given sizes on a given device: what ``explain`` prints of it."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import attrs

from fusedsl.analysis.budgets import Device, has_high_bandwidth
from fusedsl.analysis.domains import class_sizes, domain_map
from fusedsl.analysis.edges import downstream, find_reads, is_structure, upstream
from fusedsl.analysis.limits import check_inner, check_inner_outer
from fusedsl.analysis.liveness import (
    KeptValue,
    broadcast_over_rows,
    live_bytes,
    outer_partial_bytes,
    plain_values,
    projected_values,
)
from fusedsl.analysis.memory_order import TensorLayout, memory_order, symbol_sizes
from fusedsl.analysis.patterns import split_by_type
from fusedsl.analysis.persistent import PersistentBuffer, find_persistence
from fusedsl.analysis.projection import (
    Outcome,
    Projection,
    Recompute,
    decide_projection,
    find_derived,
    find_recomputes,
)
from fusedsl.analysis.reductions import (
    ReductionProperties,
    ReductionType,
    find_reductions,
    reduction_properties,
    reduction_type,
    reference_reduction,
)
from fusedsl.analysis.refusal import Refusal
from fusedsl.analysis.storage import (
    InnerOuterStorage,
    Storage,
    plan_inner_outer_storage,
    plan_inner_storage,
    single_sm_bytes,
    uses_shared,
)
from fusedsl.analysis.storage_dtype import stored_bytes, stored_dtypes
from fusedsl.graph.graph import Graph
from fusedsl.graph.types import Symbol, dtype_name


@attrs.frozen
class ReductionRole:
    """What a reduction is to its kernel.

    Attributes:
        node: the reduction.
        innermost: it closes the innermost loop in memory.
        reference: it decides the tiles of everything else.
        normalization: its result meets the row again, so it makes persistent buffers.
        terminal: its result only leaves the kernel.
        stage: the pass over the row it belongs to; those of one stage share a barrier.
    """

    node: int
    innermost: bool
    reference: bool
    normalization: bool
    terminal: bool
    stage: int


@attrs.frozen
class Facts:
    """The analysis of one segment. ``str`` gives it to read.

    Attributes:
        graph: the segment.
        type: of all reductions together.
        roles: one a reduction, in graph order.
        properties: extents of the reference reduction; None without reductions.
        class_sizes: the extent of every loop.
        buffers: the persistent buffers.
        not_cacheable: values that fit but have only a part of the reduced loops.
        derived: buffers computed from other buffers -> those.
        recomputes: how to compute each buffer again.
        plain_bytes: bytes of a row kept at once without projection.
        projected_bytes: with projection; 0 if nothing is projectable.
        projection: the decision.
        kept: what is kept of a row after it.
        kept_bytes: bytes of a row kept at once.
        over_rows: values that all rows share.
        outer_bytes: partial results of outer reductions.
        storage: where the kept values live; None without inner reductions.
        limits: what speaks against keeping rows of this size on this device.
    """

    graph: Graph
    type: ReductionType
    roles: tuple[ReductionRole, ...]
    properties: ReductionProperties | None
    class_sizes: tuple[int, ...]
    buffers: tuple[PersistentBuffer, ...]
    not_cacheable: tuple[int, ...]
    derived: Mapping[int, tuple[int, ...]] = attrs.field(hash=False)
    recomputes: tuple[Recompute, ...]
    plain_bytes: int
    projected_bytes: int
    projection: Projection
    kept: tuple[KeptValue, ...]
    kept_bytes: int
    over_rows: frozenset[int]
    outer_bytes: int
    storage: Storage | InnerOuterStorage | Refusal | None
    limits: Refusal | None = None

    def __str__(self) -> str:
        return describe_facts(self)


def analyse(
    graph: Graph,
    layouts: Mapping[int, TensorLayout],
    device: Device,
    extents: Mapping[Symbol, int] | None = None,
) -> Facts:
    """All facts about a segment.

    Args:
        graph: the segment.
        layouts: of its inputs and outputs, or of some of them; sizes seen when tracing stand in for what is missing.
        device: the GPU to plan for.
        extents: sizes of symbols that no layout has.
    """
    order = memory_order(graph, layouts)
    sizes = class_sizes(domain_map(graph), {**symbol_sizes(graph, layouts), **(extents or {})})
    kind = reduction_type(graph, order)
    inner, outer = split_by_type(graph, order)
    reference = None if kind is ReductionType.NONE else reference_reduction(graph, order)
    properties = None if reference is None else reduction_properties(graph, order, sizes, reference)
    persistence = find_persistence(graph)
    plain, projected = plain_values(graph), projected_values(graph)
    plain_bytes, projected_bytes = live_bytes(graph, plain, sizes), live_bytes(graph, projected, sizes)
    is_mixed = kind is ReductionType.INNER_OUTER
    over_rows = broadcast_over_rows(graph, inner[0]) if is_mixed else frozenset()
    is_3d = properties is not None and properties.is_3d
    results = tuple(stored_bytes(graph)[r] for r in (inner or outer))
    shared = bool(inner) and not is_3d and uses_shared(device)
    projection = decide_projection(
        find_recomputes(graph),
        plain_bytes,
        projected_bytes,
        storage_bytes=None if is_mixed else single_sm_bytes(plain, sizes, results, device, shared=shared),
        inner=kind is ReductionType.INNER,
        high_bandwidth=has_high_bandwidth(device),
        size_check=not over_rows,
    )
    kept = projected if projection.outcome is Outcome.PROJECT else plain
    kept_bytes = projected_bytes if projection.outcome is Outcome.PROJECT else plain_bytes
    outer_bytes = outer_partial_bytes(graph, outer, sizes) if is_mixed else 0
    storage: Storage | InnerOuterStorage | Refusal | None = None
    limits: Refusal | None = None
    if is_mixed:
        storage = plan_inner_outer_storage(kept, outer_bytes, over_rows, sizes, results, device)
        limits = None if properties is None else check_inner_outer(storage, properties, device)
    elif kind is ReductionType.INNER:
        storage = plan_inner_storage(
            kept, lambda some: live_bytes(graph, some, sizes), sizes, results, device, is_3d=is_3d, inputs=graph.inputs
        )
        limits = None if properties is None else check_inner(storage, kept_bytes, properties, device)
    return Facts(
        graph,
        kind,
        _roles(graph, frozenset(inner), reference),
        properties,
        sizes,
        persistence.buffers,
        persistence.not_cacheable,
        find_derived(graph),
        find_recomputes(graph),
        plain_bytes,
        projected_bytes,
        projection,
        kept,
        kept_bytes,
        over_rows,
        outer_bytes,
        storage,
        limits,
    )


@functools.lru_cache(maxsize=256)
def _roles(graph: Graph, inner: frozenset[int], reference: int | None) -> tuple[ReductionRole, ...]:
    found = find_reductions(graph)
    varies = domain_map(graph).varies
    buffers = find_persistence(graph).buffers
    roles = []
    for node_id, reduced in zip(found.nodes, found.reduced, strict=True):
        below = downstream(graph)[node_id] & ~(1 << node_id)
        returns = any(
            upstream(graph)[node_id] >> b.node & 1 and any(below >> point & 1 for point in b.resolution_points)
            for b in buffers
        )
        used = any(below >> n.id & 1 and varies[n.id] & reduced for n in graph)
        used = used or any(below >> r & 1 for r in found.nodes)
        stage = found.stage[node_id]
        roles.append(ReductionRole(node_id, node_id in inner, node_id == reference, returns, not used, stage))
    return tuple(roles)


def describe_facts(facts: Facts) -> str:
    """The facts as text: roles, buffers with bytes, where each is resolved, what was projected and why."""
    if facts.properties is None:
        return "no reductions"
    p = facts.properties
    lines = [
        f"reductions: {facts.type.value}, {p.pattern}, {p.iteration_numel} results "
        f"of {p.reduction_numel} elements{', 3D' if p.is_3d else ''}"
    ]
    lines += [f"  {_role_text(facts, role)}" for role in facts.roles]
    if not facts.buffers:
        lines.append("persistent buffers: none")
    else:
        lines.append(f"persistent buffers: {facts.plain_bytes} bytes a row at once")
        lines += [f"  {_buffer_text(facts, index)}" for index in range(len(facts.buffers))]
    if facts.not_cacheable:
        lines.append(f"not cacheable (a part of the reduced loops only): {_names(facts, facts.not_cacheable)}")
    if facts.buffers:
        lines.append(f"projection: {facts.projection.outcome.value}: {facts.projection.reason}")
        lines += [f"  {_recompute_text(facts, r)}" for r in facts.recomputes]
        kept = ", ".join(f"{facts.graph[v.node].name} ({v.bytes(facts.class_sizes)} bytes)" for v in facts.kept)
        lines.append(f"kept: {kept}")
    if facts.outer_bytes:
        lines.append(f"partial results of outer reductions: {facts.outer_bytes} bytes in registers")
    if facts.buffers and facts.storage is not None:
        lines.append(f"storage by the budgets: {_storage_text(facts)}")
        if facts.limits is not None and facts.limits is not facts.storage:
            lines.append(f"limits: {facts.limits.reason}")
    return "\n".join(lines)


def _names(facts: Facts, nodes: tuple[int, ...]) -> str:
    return ", ".join(facts.graph[i].name for i in nodes)


def _sources(facts: Facts, nodes: tuple[int, ...]) -> tuple[int, ...]:
    """The nodes that compute these values: broadcasts are looked through."""
    reads = find_reads(facts.graph)
    found = (reads[i][0].source if is_structure(facts.graph[i]) else i for i in nodes)
    return tuple(dict.fromkeys(found))


def _defined(facts: Facts, node_id: int) -> str:
    """The name of a value, and how it is computed where the name is not the user's."""
    node = facts.graph[node_id]
    if not node.name.startswith("_"):
        return node.name
    operands = _sources(facts, tuple(i for i in node.inputs if facts.graph[i].is_tensor))
    return f"{node.name} = {node.op}({_names(facts, operands)})"


def _role_text(facts: Facts, role: ReductionRole) -> str:
    words = ["inner" if role.innermost else "outer"]
    words += ["reference"] if role.reference else ["follower"]
    words += ["normalization"] if role.normalization else []
    words += ["terminal"] if role.terminal else []
    return f"{_defined(facts, role.node)}: {', '.join(words)}, pass {role.stage + 1}"


def _buffer_text(facts: Facts, index: int) -> str:
    buffer = facts.buffers[index]
    dtype = stored_dtypes(facts.graph)[buffer.node]
    assert dtype is not None
    size = KeptValue(buffer.node, buffer.classes, dtype.itemsize, ()).bytes(facts.class_sizes)
    points = _names(facts, buffer.resolution_points)
    text = f"{_defined(facts, buffer.node)}: {size} bytes ({dtype_name(dtype)}), resolved at {points}"
    if buffer.node in facts.derived:
        text += f"; not kept, computed from {_names(facts, facts.derived[buffer.node])}"
    if buffer.node in facts.over_rows:
        text += "; shared by all rows"
    return text


def _recompute_text(facts: Facts, recompute: Recompute) -> str:
    name = facts.graph[recompute.buffer].name
    if recompute.refusal is not None:
        return f"{name} is not projectable: {recompute.refusal.reason}"
    text = f"{name} from {_names(facts, recompute.inputs)}"
    if recompute.restarts:
        text += f" and the row scalars {_names(facts, _sources(facts, recompute.restarts))}"
    return text


def _storage_text(facts: Facts) -> str:
    storage = facts.storage
    if isinstance(storage, Storage):
        shared = f"; in shared memory: {_names(facts, storage.shared)}" if storage.shared else ""
        return f"{storage.kind.value} ({storage.reason}){shared}"
    if isinstance(storage, InnerOuterStorage):
        return (
            f"shared memory: {_names(facts, storage.shared) or 'nothing'} ({storage.smem_bytes} bytes); "
            f"registers: {_names(facts, storage.registers) or 'nothing but partial results'} "
            f"({storage.register_bytes} bytes)"
        )
    return f"refused: {storage}"
