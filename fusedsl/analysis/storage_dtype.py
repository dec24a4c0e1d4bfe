# SPDX-License-Identifier: Apache-2.0
"""The dtype in which a value would be kept across a reduction."""

from __future__ import annotations

import functools

import torch

from fusedsl.analysis.edges import find_reads
from fusedsl.graph.graph import Graph, Node
from fusedsl.graph.ops import OPS, Kind
from fusedsl.graph.types import compute_dtype


@functools.lru_cache(maxsize=256)
def stored_dtypes(graph: Graph) -> tuple[torch.dtype | None, ...]:
    """Per node, the narrowest dtype that keeps its value exactly; None for host scalars.

    Arguments and explicitly rounded values are kept as they are; other 16-bit floats are not rounded between ops, so
    they need 32 bits. A cast to a wider dtype is repeated at every use and its narrow source kept, unless the source is
    an argument: keeping that one is what projection decides.
    """
    found: list[torch.dtype | None] = []
    reads = find_reads(graph)
    for node in graph:
        if not node.is_tensor:
            found.append(None)
            continue
        dtype = node.tensor.dtype
        kind = OPS[node.op].kind
        if kind is Kind.REINDEX:
            dtype = found[node.inputs[0]] or dtype
        elif kind in (Kind.POINTWISE, Kind.REDUCTION, Kind.FACTORY) or (kind is Kind.CAST and not _rounds(node)):
            dtype = compute_dtype(dtype)
        if kind is Kind.CAST and graph[source := reads[node.id][0].source].op != "input":
            narrow = found[source]
            if narrow is not None and _holds(node.tensor.dtype, narrow):
                dtype = narrow
        found.append(dtype)
    return tuple(found)


def stored_bytes(graph: Graph) -> tuple[int, ...]:
    """Per node, bytes of an element where it is kept; 0 for host scalars."""
    return tuple(0 if dtype is None else dtype.itemsize for dtype in stored_dtypes(graph))


def _rounds(node: Node) -> bool:
    return bool(node.attribute("explicit"))


def _holds(wide: torch.dtype, narrow: torch.dtype) -> bool:
    """True if casting ``narrow`` to ``wide`` is an up-cast."""
    return narrow.itemsize < wide.itemsize and torch.promote_types(wide, narrow) is wide
