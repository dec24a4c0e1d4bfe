# SPDX-License-Identifier: Apache-2.0
"""Derivatives of reductions, broadcasts, lookups and casts."""

from __future__ import annotations

import torch

from fusedsl.gradients.centred import sum_of
from fusedsl.gradients.expression import Expression, apply, cast, reduce, reindex, unreduce
from fusedsl.gradients.gradient import masked, select
from fusedsl.gradients.rules.table import Flow, Site, rule
from fusedsl.graph.types import TensorType, compute_dtype


@rule("cast")
def cast_(site: Site, g: Expression) -> tuple[Flow, ...]:
    return (cast(g, compute_dtype(site.raw(0).dtype)),)


@rule("reindex", structural=True)
def reindex_(site: Site, g: Expression) -> tuple[Flow, ...]:
    """Sum over the dims that were broadcast, then put the others back in the source's order."""
    dims, source = site.attribute("dims"), site.raw(0).shape
    spread = [k for k, d in enumerate(dims) if (1 if d is None else source[d]) != g.shape[k]]
    summed = sum_of(g, spread)
    kept = [d for k, d in enumerate(dims) if k not in spread]
    places = {d: k for k, d in enumerate(kept) if d is not None}
    # Places that stand for no source dim have size 1 and are left out.
    return (reindex(summed, [places.get(d) for d in range(len(source))], source),)


@rule("sum", structural=True)
def sum_(site: Site, g: Expression) -> tuple[Flow, ...]:
    return (unreduce(g, site.attribute("dims"), site.raw(0).shape),)


@rule("amax", "amin", structural=True)
def extremum(site: Site, g: Expression) -> tuple[Flow, ...]:
    """Ties share evenly; a NaN gives NaN everywhere, as in ``torch.amax``."""
    x, dims = site.operand(0), site.attribute("dims")
    best = cast(apply("eq", x, unreduce(site.result, dims, x.shape)), g.dtype)
    return (unreduce(g / reduce("sum", best, dims), dims, x.shape) * best,)


@rule("prod", structural=True)
def prod(site: Site, g: Expression) -> tuple[Flow, ...]:
    """The product of the other elements: by division where no element is 0, else by the product of those that are not.

    The form with zeros is right for first derivatives only, which its nodes say.
    """
    x, dims = site.operand(0), site.attribute("dims")
    zero = apply("eq", x, 0)
    zeros = reduce("sum", cast(zero, x.dtype), dims)
    nonzero = select(zero, 1.0, x)
    product = reduce("prod", nonzero, dims)
    alone = select(apply("eq", zeros, 1), g * product, 0.0)
    without = select(apply("eq", zeros, 0), g * product, 0.0)
    others = apply("div", unreduce(without, dims, x.shape), nonzero)
    return (apply("where", zero, unreduce(alone, dims, x.shape), others, first_order="prod"),)


@rule("gather", structural=True)
def gather(site: Site, g: Expression) -> tuple[Flow, ...]:
    """The gradient at the looked-up position of every row, 0 elsewhere."""
    dim, shape = site.attribute("dim"), site.raw(0).shape
    positions = site.builder.add("iota", (), TensorType(torch.int64, shape), dim=dim)
    wanted = unreduce(site.raw(1), (dim,), shape)
    here = apply("eq", Expression(site.builder, positions), wanted)
    return masked(unreduce(g, (dim,), shape), here), None
