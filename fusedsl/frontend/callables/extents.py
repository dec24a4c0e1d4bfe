# SPDX-License-Identifier: Apache-2.0
"""Sizes written by the user (ints, ``x.shape[0]``, -1) as extents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fusedsl.frontend.callables.compose import static_int
from fusedsl.frontend.callables.errors import NeedsStatic, OpError
from fusedsl.frontend.callables.values import ScalarValue, TensorValue, host, is_value, size
from fusedsl.graph.builder import Builder
from fusedsl.graph.types import Extent, extent_hint


def sizes_argument(sizes: Sequence[Any]) -> tuple[Any, ...]:
    """``f(2, 3)`` and ``f((2, 3))`` alike."""
    if len(sizes) == 1 and isinstance(sizes[0], (tuple, list)):
        return tuple(sizes[0])
    return tuple(sizes)


def extent_of(item: Any, role: str = "size") -> Extent:
    """A written size as an extent.

    Raises:
        NeedsStatic: it is a host scalar that is not the size of a dim.
        OpError: it is negative, or no int.
    """
    if isinstance(item, ScalarValue):
        node = item.builder.nodes[item.id]
        if node.op == "size":
            dim: int = node.attribute("dim")
            return item.builder.tensor(node.inputs[0]).shape[dim]
    value = static_int(item, role)
    if value < 0:
        raise OpError(f"{role} {value} is negative")
    return value


def match_extent(builder: Builder, written: Any, extent: Extent) -> bool:
    """Whether a written size (not -1) equals ``extent``; if so the two are unified."""
    try:
        wanted = extent_of(written)
    except NeedsStatic:
        return False
    if wanted == extent:
        return True
    if extent_hint(wanted) != extent_hint(extent) or extent_hint(extent) < 2:
        return False
    builder.unify(wanted, extent)
    return True


def count(value: TensorValue, dims: Sequence[int]) -> ScalarValue | int | Any:
    """The number of elements over ``dims``, as an int if static, else a host scalar."""
    total: Any = 1
    for dim in dims:
        extent = size(value, dim)
        total = extent if not is_value(total) and total == 1 else host("mul", total, extent)
    return total
