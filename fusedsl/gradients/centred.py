# SPDX-License-Identifier: Apache-2.0
"""Sums, with constant factors taken out and without terms known to add up to zero.

Such a term is ``x - x.mean(dims)`` times what is constant along ``dims``: the gradient of a variance reaches the mean
only through such a sum. Leaving it out saves a reduction that waits for another one, and the noise of a sum that is 0.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from fusedsl.gradients.expression import Expression, apply, extent, full, reduce, reindex, zeros
from fusedsl.graph.builder import Builder
from fusedsl.graph.graph import Node
from fusedsl.graph.types import Extent, TensorType


def sum_of(value: Expression, dims: Sequence[int]) -> Expression:
    """The sum over ``dims``, without the terms that are centred along them."""
    if not dims:
        return value
    terms = _terms(value, 1)
    kept = [(sign, term) for sign, term in terms if not is_centred(term, dims)]
    if len(kept) == len(terms):
        return _factored(value, dims)
    if not kept:
        shape = tuple(e for d, e in enumerate(value.shape) if d not in dims)
        return zeros(value.builder, TensorType(value.dtype, shape))
    sign, rest = kept[0]
    rest = rest if sign > 0 else -rest
    for sign, term in kept[1:]:
        rest = rest + term if sign > 0 else rest - term
    return _factored(rest, dims)


def _factored(value: Expression, dims: Sequence[int]) -> Expression:
    """The sum over ``dims``, with signs, numbers and factors that are constant along ``dims`` applied after it."""
    builder, node = value.builder, value.node
    if node.op == "neg":
        return -_factored(Expression(builder, node.inputs[0]), dims)
    if node.op == "reindex" and _is_constant_along(builder, node.id, dims):
        narrow = _row_factor(builder, node.id, dims)
        assert narrow is not None
        for d in dims:
            narrow = narrow * extent(value, d)
        return narrow
    if node.op in ("mul", "div"):
        inner, factor = node.inputs
        if node.op == "mul" and _row_factor(builder, inner, dims) is not None:
            inner, factor = factor, inner
        narrow = _row_factor(builder, factor, dims) if builder.nodes[inner].is_tensor else None
        if narrow is not None:
            return apply(node.op, _factored(Expression(builder, inner), dims), narrow)
    return reduce("sum", value, dims)


def _row_factor(builder: Builder, node_id: int, dims: Sequence[int]) -> Expression | None:
    """The factor as it applies after the sum over ``dims``; None if it varies along them."""
    node = builder.nodes[node_id]
    factor = Expression(builder, node_id)
    if not node.is_tensor:
        return factor
    if node.op not in ("reindex", "full") or not _is_constant_along(builder, node_id, dims):
        return None
    shape = node.tensor.shape
    kept = [d for d in range(len(shape)) if d not in dims]
    extents = tuple(shape[d] for d in kept)
    if node.op == "full":
        return full(Expression(builder, node.inputs[0]), factor.dtype, extents)
    places = node.attribute("dims")
    source = Expression(builder, node.inputs[0])
    return reindex(source, [places[d] for d in kept], extents)


def _terms(value: Expression, sign: int) -> list[tuple[int, Expression]]:
    """The terms of a sum, with their signs."""
    node, builder = value.node, value.builder
    if node.op == "neg":
        return _terms(Expression(builder, node.inputs[0]), -sign)
    if node.op not in ("add", "sub") or not all(builder.nodes[i].is_tensor for i in node.inputs):
        return [(sign, value)]
    a, b = (Expression(builder, i) for i in node.inputs)
    return _terms(a, sign) + _terms(b, sign if node.op == "add" else -sign)


def is_centred(value: Expression, dims: Sequence[int]) -> bool:
    """Whether ``value`` is a factor constant along ``dims`` times ``x - x.mean(dims)``."""
    builder, node = value.builder, value.node
    match node.op:
        case "neg" | "cast":
            return builder.nodes[node.inputs[0]].is_tensor and is_centred(Expression(builder, node.inputs[0]), dims)
        case "mul":
            a, b = node.inputs
            return (_is_constant_along(builder, b, dims) and is_centred(Expression(builder, a), dims)) or (
                _is_constant_along(builder, a, dims) and is_centred(Expression(builder, b), dims)
            )
        case "div":
            a, b = node.inputs
            return _is_constant_along(builder, b, dims) and is_centred(Expression(builder, a), dims)
        case "sub":
            return _is_mean_of(builder, node.inputs[1], node.inputs[0], tuple(dims))
    return False


def _is_constant_along(builder: Builder, node_id: int, dims: Sequence[int]) -> bool:
    node = builder.nodes[node_id]
    if not node.is_tensor or node.op == "full":
        return True
    if node.op != "reindex":
        return False
    source = builder.tensor(node.inputs[0]).shape
    places = node.attribute("dims")
    return all(places[d] is None or source[places[d]] == 1 for d in dims)


def _is_mean_of(builder: Builder, mean_id: int, value_id: int, dims: tuple[int, ...]) -> bool:
    """Whether ``mean_id`` is the mean of ``value_id`` over ``dims``, broadcast back."""
    node = builder.nodes[mean_id]
    if not node.is_tensor:
        return False
    places: list[int | None] = list(range(node.tensor.rank))
    count: Node | None = None
    while node.op != "sum":
        if node.op == "reindex":
            source = builder.tensor(node.inputs[0]).shape
            inner = node.attribute("dims")
            places = [None if p is None or inner[p] is None or source[inner[p]] == 1 else inner[p] for p in places]
        elif node.op == "div" and count is None and not builder.nodes[node.inputs[1]].is_tensor:
            count = builder.nodes[node.inputs[1]]
        elif node.op != "cast":
            return False
        node = builder.nodes[node.inputs[0]]
    if node.attribute("dims") != dims or _uncast(builder, node.inputs[0]) != _uncast(builder, value_id):
        return False
    shape = builder.tensor(node.inputs[0]).shape
    kept = [d for d in range(len(shape)) if d not in dims]
    expected = [None if d in dims or shape[d] == 1 else kept.index(d) for d in range(len(shape))]
    return places == expected and _is_count(builder, count, [shape[d] for d in dims])


def _uncast(builder: Builder, node_id: int) -> int:
    node = builder.nodes[node_id]
    while node.op == "cast" and not node.attribute("explicit") and node.tensor.dtype.is_floating_point:
        node = builder.nodes[node.inputs[0]]
    return node.id


def _is_count(builder: Builder, count: Node | None, extents: Sequence[Extent]) -> bool:
    """Whether a host scalar is the product of ``extents``; no scalar stands for 1."""
    found: list[Extent] = []
    stack = [] if count is None else [count]
    while stack:
        node = stack.pop()
        if node.op == "constant":
            found.append(node.attribute("value"))
        elif node.op == "size":
            found.append(builder.tensor(node.inputs[0]).shape[node.attribute("dim")])
        elif node.op == "scalar" and node.attribute("function") in ("mul", "float"):
            stack += [builder.nodes[i] for i in node.inputs]
        else:
            return False
    return _product(found) == _product(extents)


def _product(extents: Sequence[Extent]) -> tuple[float, Counter[Extent]]:
    number = 1.0
    symbols: Counter[Extent] = Counter()
    for size in extents:
        if isinstance(size, (int, float)):
            number *= size
        else:
            symbols[size] += 1
    return number, symbols
