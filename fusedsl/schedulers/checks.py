# SPDX-License-Identifier: Apache-2.0
"""Checks that several schedulers share; each gives a Refusal or None."""

from __future__ import annotations

from collections.abc import Iterable

from fusedsl.analysis.domains import domain_map
from fusedsl.analysis.patterns import check_broadcasts, check_buffers
from fusedsl.analysis.persistent import find_persistent_buffers
from fusedsl.analysis.reductions import find_reductions
from fusedsl.analysis.refusal import first_refusal as first_refusal
from fusedsl.graph.graph import Graph
from fusedsl.graph.ops import OPS, Kind
from fusedsl.schedulers.base import Refusal
from fusedsl.schedulers.combine import SPELLINGS
from fusedsl.schedulers.space import IterationSpace


def check_ops(graph: Graph) -> Refusal | None:
    """No opaque ops, no pointwise op without kernel text, at least one tensor output."""
    for node in graph:
        op = OPS[node.op]
        if op.kind is Kind.OPAQUE:
            return Refusal("opaque", f"{node.name} is run by eager torch ({node.op}); kernels take ops of the op table")
        if op.kind is Kind.POINTWISE and not op.emit:
            return Refusal("no_kernel_text", f"{node.op} has no kernel text")
        if op.kind is Kind.REDUCTION and node.op not in SPELLINGS:
            return Refusal("no_kernel_text", f"{node.op} has no kernel text")
        if node.is_tensor and node.tensor.dtype.is_complex:
            return Refusal("dtype", f"{node.name} is {node.tensor.dtype}; kernels take real numbers, ints and bool")
    return None


def check_self_mapping(graph: Graph) -> Refusal | None:
    """No value has one loop on two dims (``x + x.T``)."""
    domains = domain_map(graph)
    for node in graph:
        if node.is_tensor and domains.self_mapped(node.id):
            return Refusal(
                "self_mapping", f"two dims of {node.name} are the same loop; each dim needs a loop of its own"
            )
    return None


def check_structure(graph: Graph) -> Refusal | None:
    """Reductions that one loop nest can hold: ops with kernel text, the same loops reduced, outputs that fit."""
    if not find_reductions(graph).nodes:
        return Refusal("no_reduction_op", "the segment has no reduction")
    return (
        check_ops(graph)
        or check_self_mapping(graph)
        or check_seen(graph)
        or check_agreement(graph)
        or check_outputs(graph)
        or check_broadcasts(graph)
    )


def check_seen(graph: Graph) -> Refusal | None:
    """Reductions read every loop of every output."""
    domains = domain_map(graph)
    seen = {c for r in find_reductions(graph).nodes for c in domains.classes(graph[r].inputs[0])}
    for output in graph.outputs:
        missing = set(domains.classes(output)) - seen
        if missing:
            reason = f"{graph[output].name} has the loop {_extents(graph, missing)}, which no reduction sees"
            return Refusal("output_dim_not_covered", reason, output)
    return None


def check_agreement(graph: Graph) -> Refusal | None:
    """All reductions close the same loops."""
    found = find_reductions(graph)
    for node_id, reduced in zip(found.nodes, found.reduced, strict=True):
        if reduced != found.reduced[0]:
            reason = (
                f"the reductions {graph[found.nodes[0]].name} and {graph[node_id].name} close different loops "
                f"({_extents(graph, found.reduced[0])} and {_extents(graph, reduced)}); one kernel needs the same"
            )
            return Refusal("unmapped_multi_reduction", reason, node_id)
    return None


def check_outputs(graph: Graph) -> Refusal | None:
    """Every output varies over all loops, or over all kept loops."""
    domains = domain_map(graph)
    reduced = find_reductions(graph).classes
    used = {c for node in graph if node.is_tensor for c in domains.classes(node.id)}
    kept = used - reduced
    for output in graph.outputs:
        found = set(domains.classes(output))
        if found not in (used, kept):
            missing = _extents(graph, (used if found & reduced else kept) - found)
            reason = f"{graph[output].name} does not vary over the loop {missing}; all outputs must share the loops"
            return Refusal("uneven_outputs", reason, output)
    return None


def check_row_used_again(graph: Graph) -> Refusal | None:
    """A value of the row is needed after a reduction of it, or is an output beside the reduction."""
    return None if _row_outputs(graph) else check_buffers(graph)


def check_results_only_leave(graph: Graph) -> Refusal | None:
    """Results of reductions meet neither the row nor another reduction; the row itself is no output."""
    for buffer in find_persistent_buffers(graph):
        name, point = graph[buffer.node].name, graph[buffer.resolution_points[0]].name
        reason = f"{name} is needed again for {point}, after a reduction of it: a persistent case"
        return Refusal("persistent_buffer", reason, buffer.node)
    for output in _row_outputs(graph):
        reason = f"the output {graph[output].name} varies over the reduced loops; here only results may leave"
        return Refusal("row_output", reason, output)
    found = find_reductions(graph)
    domains = domain_map(graph)
    for node in graph:
        again = node.id in found.nodes or found.classes & set(domains.classes(node.id))
        if node.is_tensor and found.stage[node.id] > 0 and again:
            reason = f"{node.name} takes the result of a reduction over the reduced loops again"
            return Refusal("post_reduction_broadcast", reason, node.id)
    return None


def _row_outputs(graph: Graph) -> list[int]:
    """Outputs that vary over reduced loops."""
    domains = domain_map(graph)
    reduced = find_reductions(graph).classes
    return [i for i in graph.outputs if reduced & set(domains.classes(i))]


def _extents(graph: Graph, classes: Iterable[int]) -> str:
    return ", ".join(str(domain_map(graph).extents[c]) for c in sorted(classes)) or "none"


def check_innermost(space: IterationSpace) -> Refusal | None:
    """The innermost loop in memory is reduced."""
    if space.axes[-1].reduced:
        return None
    return Refusal("type_mismatch", "the innermost loop in memory is kept; this scheduler reduces the innermost loop")


def check_positions(space: IterationSpace) -> Refusal | None:
    """argmax and argmin count positions in logical order, which must be the order of the loops."""
    graph = space.problem.graph
    domains = domain_map(graph)
    walked = [c for axis in space.axes if axis.reduced for c in axis.classes]
    for node_id in find_reductions(graph).nodes:
        node = graph[node_id]
        if not SPELLINGS[node.op].pair:
            continue
        source = domains.dims[node.inputs[0]]
        logical = [source[d] for d in node.attribute("dims") if source[d] in walked]
        if logical != walked:
            reason = f"{node.name} counts positions in an order that memory does not have"
            return Refusal("position_order", reason, node_id)
    return None
