# SPDX-License-Identifier: Apache-2.0
"""Checks that several schedulers share; each gives a Refusal or None."""

from __future__ import annotations

from fusedsl.analysis.domains import domain_map
from fusedsl.analysis.reductions import find_reductions
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
            return Refusal("self_mapping", f"two dims of {node.name} are the same loop; each dim needs a loop of its own")
    return None


def check_coverage(graph: Graph) -> Refusal | None:
    """Every output varies over all loops, or over all kept loops."""
    domains = domain_map(graph)
    reduced = find_reductions(graph).classes
    used = {c for node in graph if node.is_tensor for c in domains.classes(node.id)}
    kept = used - reduced
    for output in graph.outputs:
        found = set(domains.classes(output))
        if found not in (used, kept):
            missing = ", ".join(str(domains.extents[c]) for c in sorted((used if found & reduced else kept) - found))
            return Refusal(
                "output_dim_not_covered",
                f"{graph[output].name} does not vary over the loop of extent {missing}; all outputs must share the loops",
            )
    return None


def check_agreement(graph: Graph) -> Refusal | None:
    """All reductions close the same loops."""
    found = find_reductions(graph)
    if found.agree:
        return None
    names = ", ".join(graph[i].name for i in found.nodes)
    return Refusal("unmapped_multi_reduction", f"the reductions {names} close different loops; one kernel needs the same")


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
            return Refusal("position_order", f"{node.name} counts positions in an order that memory does not have")
    return None


def first_refusal(*refusals: Refusal | None) -> Refusal | None:
    """The first of several check results that refuses."""
    return next((r for r in refusals if r is not None), None)
