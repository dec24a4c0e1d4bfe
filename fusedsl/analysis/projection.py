# SPDX-License-Identifier: Apache-2.0
"""Projection: keeping the arguments a persistent buffer is computed from, or the buffers before it, in its place.

A buffer can be projected to arguments if computing it again needs no reduction over its loops. Results of reductions
that do not vary over those loops are free: one scalar a row, from which the computation starts again.
"""

from __future__ import annotations

import enum
import functools

import attrs

from fusedsl.analysis.domains import domain_map
from fusedsl.analysis.edges import find_reads, is_reduction, upstream
from fusedsl.analysis.persistent import PersistentBuffer, find_persistent_buffers, is_cacheable
from fusedsl.analysis.reductions import find_reductions
from fusedsl.analysis.refusal import Refusal
from fusedsl.graph.graph import Graph
from fusedsl.graph.ops import OPS, Kind
from fusedsl.graph.remember import remember

#: Exponentials, by name: cheaper than some divisions, but they all queue for one small unit.
EXPONENTIALS = frozenset({"exp", "exp2", "expm1", "sigmoid"})
#: Other ops are dear from this cost on (tanh 12, erf 14, pow 30; division is 8).
DEAR_COST = 12


@attrs.frozen
class Recompute:
    """How to compute a persistent buffer again.

    Attributes:
        buffer: the value.
        inputs: the arguments with a loop of the buffer, which would be kept instead.
        restarts: values that depend on a reduction but are one scalar a row; the chain starts from them.
        ops: the nodes to compute again, in order, the buffer included.
        cost: of computing one element, in fused multiply-adds.
        dear: names of the expensive ops among them (exponentials first of all).
        random: computing it again could give another value (random numbers, or ops that only eager torch knows).
        refusal: why it cannot be projected; None if it can.
    """

    buffer: int
    inputs: tuple[int, ...]
    restarts: tuple[int, ...]
    ops: tuple[int, ...]
    cost: int
    dear: tuple[str, ...]
    random: bool
    refusal: Refusal | None

    @property
    def projectable(self) -> bool:
        return self.refusal is None


@remember(maxsize=256)
def find_recomputes(graph: Graph) -> tuple[Recompute, ...]:
    """How to compute every persistent buffer again, in the order of ``find_persistent_buffers``."""
    return tuple(find_recompute(graph, buffer) for buffer in find_persistent_buffers(graph))


def find_recompute(graph: Graph, buffer: PersistentBuffer) -> Recompute:
    """Walk back from a buffer to arguments and free row scalars."""
    domains = domain_map(graph)
    reductions = sum(1 << r for r in find_reductions(graph).nodes)
    ops: set[int] = set()
    inputs: set[int] = set()
    restarts: set[int] = set()
    stack = [buffer.node]
    blocker: int | None = None
    while stack:
        current = stack.pop()
        node = graph[current]
        if current in ops or not node.is_tensor:
            continue
        if upstream(graph)[current] & reductions and not domains.varies[current] & buffer.classes:
            restarts.add(current)
        elif node.op == "input":
            inputs.add(current)
        elif is_reduction(node):
            blocker = current
        else:
            ops.add(current)
            stack.extend(node.inputs)
    kept = tuple(i for i in sorted(inputs) if domains.varies[i] & buffer.classes)
    names = [graph[i].op for i in sorted(ops)]
    return Recompute(
        buffer.node,
        kept,
        tuple(sorted(restarts)),
        tuple(sorted(ops)),
        sum(OPS[name].cost for name in names if OPS[name].kind is Kind.POINTWISE),
        tuple(dict.fromkeys(name for name in names if _is_dear(name))),
        any(OPS[name].kind is Kind.OPAQUE for name in names),
        _refusal(graph, buffer, blocker, tuple(sorted(inputs)), kept),
    )


def _is_dear(name: str) -> bool:
    return name in EXPONENTIALS or (OPS[name].kind is Kind.POINTWISE and OPS[name].cost >= DEAR_COST)


def _refusal(
    graph: Graph, buffer: PersistentBuffer, blocker: int | None, inputs: tuple[int, ...], kept: tuple[int, ...]
) -> Refusal | None:
    name = graph[buffer.node].name
    if buffer.node in inputs:
        return Refusal("is_input", f"{name} is an argument itself", buffer.node)
    if blocker is not None:
        reason = f"computing {name} again needs the reduction {graph[blocker].name}, which varies over the same loop"
        return Refusal("needs_reduction", reason, blocker)
    for i in inputs:
        if not is_cacheable(graph, i):
            reason = f"the argument {graph[i].name} has only a part of the reduced loops, so no thread keeps it"
            return Refusal("input_not_cacheable", reason, i)
    if not kept:
        return Refusal("no_input", f"{name} is computed from no argument that has its loops", buffer.node)
    return None


@functools.lru_cache(maxsize=256)
def find_derived(graph: Graph) -> dict[int, tuple[int, ...]]:
    """Buffers that need not be kept because all they read are buffers: buffer -> the kept ones it is computed from."""
    buffers = {b.node for b in find_persistent_buffers(graph)}
    direct: dict[int, tuple[int, ...]] = {}
    reads = find_reads(graph)
    for node_id in buffers:
        sources = tuple(dict.fromkeys(r.source for r in reads[node_id]))
        if sources and not is_reduction(graph[node_id]) and set(sources) <= buffers:
            direct[node_id] = sources
    found: dict[int, tuple[int, ...]] = {}
    for node_id in sorted(direct):
        roots = (found.get(source, (source,)) for source in direct[node_id])
        found[node_id] = tuple(dict.fromkeys(r for group in roots for r in group))
    return found


class Outcome(enum.Enum):
    """What becomes of projecting the buffers to arguments."""

    PROJECT = "projected"
    AVOID_RECOMPUTE = "not projected, to avoid computing again"
    NO = "not projected"


@attrs.frozen
class Projection:
    """The decision for a whole kernel: the outcome, the rule that made it, and why in words."""

    outcome: Outcome
    rule: str
    reason: str


#: Up to this many bytes a row, computing exponentials again costs more than the registers they take.
RECOMPUTE_LIMIT = 24 << 10
RECOMPUTE_LIMIT_HIGH_BANDWIDTH = 96 << 10


def decide_projection(
    recomputes: tuple[Recompute, ...],
    plain_bytes: int,
    projected_bytes: int,
    *,
    storage_bytes: int | None,
    inner: bool,
    high_bandwidth: bool,
    size_check: bool = True,
) -> Projection:
    """Whether to project, by the first rule that applies.

    Args:
        recomputes: of all persistent buffers.
        plain_bytes: what a row takes without projection.
        projected_bytes: what it takes with it; 0 if nothing can be projected.
        storage_bytes: the most that one multiprocessor can keep of a row; None where that does not decide.
        inner: the kernel only reduces the innermost loop.
        high_bandwidth: the device has much memory bandwidth for its arithmetic.
        size_check: whether arguments that take more than the buffers rule projection out.
    """
    possible = [r for r in recomputes if r.projectable]
    dear = tuple(dict.fromkeys(name for r in possible for name in r.dear))
    sizes = f"{projected_bytes} bytes a row in place of {plain_bytes}"
    if not possible or projected_bytes == 0:
        reasons = "; ".join(r.refusal.reason for r in recomputes if r.refusal) or "there are no persistent buffers"
        return Projection(Outcome.NO, "nothing_projectable", reasons)
    if size_check and projected_bytes >= plain_bytes:
        return Projection(Outcome.NO, "no_gain", f"the arguments would take {sizes}")
    if storage_bytes is not None and storage_bytes < plain_bytes:
        reason = f"{plain_bytes} bytes a row are more than the {storage_bytes} that one multiprocessor keeps"
        return Projection(Outcome.PROJECT, "must", reason)
    if any(r.random for r in possible):
        return Projection(Outcome.NO, "random", "computing it again might give other values (random or unknown ops)")
    if not dear:
        return Projection(Outcome.PROJECT, "cheap", f"keeping the arguments takes {sizes}")
    limit = RECOMPUTE_LIMIT_HIGH_BANDWIDTH if high_bandwidth else RECOMPUTE_LIMIT
    names = ", ".join(dear)
    if inner and plain_bytes <= limit:
        reason = f"{names} would be computed again, and {plain_bytes} bytes a row are at most {limit}"
        return Projection(Outcome.AVOID_RECOMPUTE, "avoid_recompute", reason)
    return Projection(Outcome.PROJECT, "large", f"keeping the arguments takes {sizes}, worth computing {names} again")
