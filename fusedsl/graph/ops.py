# SPDX-License-Identifier: Apache-2.0
"""The op table: one row an op, with its arity, dtype rule, torch meaning and kernel spelling.

Structural and host ops (``kind`` other than POINTWISE and REDUCTION) are described in ``docs/design.md``, "The graph";
the pointwise rows themselves stand in ``ops_table.py``.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import attrs

from fusedsl.graph.ops_table import POINTWISE_ROWS, REDUCTION_ROWS


class Kind(enum.Enum):
    """What role an op plays for the schedulers."""

    INPUT = "input"  # input, scalar_input
    SCALAR = "scalar"  # host arithmetic on Python numbers
    FACTORY = "factory"  # full: a tensor made from a scalar; iota: positions along a dim; random: numbers
    REINDEX = "reindex"  # broadcast, squeeze, permute
    CAST = "cast"
    POINTWISE = "pointwise"
    REDUCTION = "reduction"
    LOOKUP = "lookup"  # gather: one element of a row; rewritten before schedulers see it
    OPAQUE = "opaque"  # run by eager torch


@attrs.frozen
class Op:
    """One row of the op table.

    Attributes:
        name: key of the table; torch's name where torch has one.
        kind: role.
        arity: number of operands (-1: any).
        torch: the eager meaning, called with the operands (pointwise) or with the operand and the reduced dims
            (reductions); None for structural ops, which ``evaluate`` knows.
        result: "same" (operands' dtype), "bool" or "int64".
        emit: kernel text, a format string over the operands' text (pointwise ops).
        cost: rough cost of recomputing one element, in fused multiply-adds.
        domain: "any"; "float" when integer operands are cast to the default float dtype first; "int" when floats are
            refused.
    """

    name: str
    kind: Kind
    arity: int
    torch: Callable[..., Any] | None = attrs.field(default=None, repr=False)
    result: str = "same"
    emit: str = ""
    cost: int = 1
    domain: str = "any"


OPS: dict[str, Op] = {}


def register(op: Op) -> Op:
    """Add a row to the table; a second row of the same name is an error."""
    assert op.name not in OPS, f"op {op.name} is registered twice"
    OPS[op.name] = op
    return op


for _name, _kind, _arity in [
    ("input", Kind.INPUT, 0),
    ("scalar_input", Kind.INPUT, 0),
    ("constant", Kind.SCALAR, 0),
    ("size", Kind.SCALAR, 1),
    ("scalar", Kind.SCALAR, -1),
    ("full", Kind.FACTORY, 1),
    ("iota", Kind.FACTORY, 0),
    ("random", Kind.FACTORY, 3),
    ("reindex", Kind.REINDEX, 1),
    ("cast", Kind.CAST, 1),
    ("gather", Kind.LOOKUP, 2),
    ("opaque", Kind.OPAQUE, -1),
    ("item", Kind.OPAQUE, 1),
]:
    register(Op(_name, _kind, _arity))

for _row in REDUCTION_ROWS:
    register(Op(_row.name, Kind.REDUCTION, 1, _row.torch, _row.result, cost=_row.cost))

for _row in POINTWISE_ROWS:
    register(Op(_row.name, Kind.POINTWISE, _row.arity, _row.torch, _row.result, _row.emit, _row.cost, _row.domain))
