# SPDX-License-Identifier: Apache-2.0
"""The facts about a segment as records for scripts: one a reduction, one a persistent buffer, with names for ids."""

from __future__ import annotations

import attrs
import torch

from fusedsl.analysis.facts import Facts
from fusedsl.analysis.liveness import KeptValue
from fusedsl.analysis.projection import Outcome
from fusedsl.analysis.storage_dtype import stored_dtypes


@attrs.frozen
class Reduction:
    """What a reduction is to its kernel.

    Attributes:
        name: of its result.
        op: of the op table: "sum", "amax".
        type: "inner" (it closes the innermost loop in memory) or "outer".
        roles: in words, of "reference", "follower", "normalization" and "terminal".
        stage: the pass over the row it belongs to, from 1; those of one pass share a barrier.
    """

    name: str
    op: str
    type: str
    roles: tuple[str, ...]
    stage: int

    def __str__(self) -> str:
        return self.name


@attrs.frozen
class Buffer:
    """A persistent buffer: a value of a row that is needed again after a reduction of the row.

    Attributes:
        name: of the value.
        bytes: of one row of it, where it is kept.
        dtype: in which it would be kept.
        resolution_points: names of the results it is kept for.
        derived_from: the buffers it is computed from if it is not kept either way.
        projected: the arguments it is computed from are kept in its place.
        projected_to: names of those arguments; empty if it cannot be projected.
        reason: why it is projected, or why not.
    """

    name: str
    bytes: int
    dtype: torch.dtype
    resolution_points: tuple[str, ...]
    derived_from: tuple[str, ...]
    projected: bool
    projected_to: tuple[str, ...]
    reason: str

    def __str__(self) -> str:
        return self.name


def reductions_of(facts: Facts) -> tuple[Reduction, ...]:
    """The reductions of a segment, in graph order."""
    found = []
    for role in facts.roles:
        node = facts.graph[role.node]
        words = ["reference" if role.reference else "follower"]
        words += [word for word in ("normalization", "terminal") if getattr(role, word)]
        kind = "inner" if role.innermost else "outer"
        found.append(Reduction(node.name, node.op, kind, tuple(words), role.stage + 1))
    return tuple(found)


def buffers_of(facts: Facts) -> tuple[Buffer, ...]:
    """The persistent buffers of a segment, in graph order."""

    def names(nodes: tuple[int, ...]) -> tuple[str, ...]:
        return tuple(facts.graph[i].name for i in nodes)

    found = []
    for buffer, recompute in zip(facts.buffers, facts.recomputes, strict=True):
        dtype = stored_dtypes(facts.graph)[buffer.node]
        assert dtype is not None, "a persistent buffer is a tensor"
        size = KeptValue(buffer.node, buffer.classes, dtype.itemsize, ()).bytes(facts.class_sizes)
        found.append(
            Buffer(
                facts.graph[buffer.node].name,
                size,
                dtype,
                names(buffer.resolution_points),
                names(facts.derived.get(buffer.node, ())),
                recompute.projectable and facts.projection.outcome is Outcome.PROJECT,
                names(recompute.inputs) if recompute.projectable else (),
                facts.projection.reason if recompute.refusal is None else recompute.refusal.reason,
            )
        )
    return tuple(found)
