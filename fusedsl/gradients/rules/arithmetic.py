# SPDX-License-Identifier: Apache-2.0
"""Derivatives of arithmetic: sums, products, quotients, powers, remainders."""

from __future__ import annotations

import math

from fusedsl.gradients.expression import Expression, apply, full, host, reduce, unreduce
from fusedsl.gradients.gradient import Gradient, masked, select
from fusedsl.gradients.patterns import exponential, log_sigmoid, root_of_squares, softmax_quotient
from fusedsl.gradients.rules.table import Flow, Site, Upstream, plus_one, rule


@rule("add")
def add(site: Site, g: Expression) -> tuple[Flow, ...]:
    return g, g


@rule("sub")
def sub(site: Site, g: Expression) -> tuple[Flow, ...]:
    logit = log_sigmoid(site.builder, site.node)
    if logit is not None:
        return (Upstream(logit, g * apply("sigmoid", -Expression(site.builder, logit))),)
    return g, -g


@rule("mul")
def mul(site: Site, g: Expression) -> tuple[Flow, ...]:
    if site.node.inputs[0] == site.node.inputs[1]:
        return ((g * 2) * site.operand(0),)
    return g * site.operand(1), g * site.operand(0)


@rule("div")
def div(site: Site, g: Expression) -> tuple[Flow, ...]:
    y = site.result
    quotient = softmax_quotient(site.builder, site.node)
    if quotient is not None:
        exponent, dims = quotient
        centre = unreduce(reduce("sum", g * y, dims), dims, y.shape)
        return (Upstream(exponent, y * (g - centre)),)
    denominator = site.operand(1)
    before = plus_one(site.builder, site.node.inputs[1])
    logit = None if before is None else exponential(site.builder, before)
    if logit is not None:
        # a / (1 + exp(z)): the product of the factors stays finite where exp(z) overflows.
        return g / denominator, Upstream(logit, -(g * y * apply("sigmoid", Expression(site.builder, logit))))
    return g / denominator, -(g * (y / denominator)) if site.needs(1) else None


@rule("neg")
def neg(site: Site, g: Expression) -> tuple[Flow, ...]:
    return (-g,)


@rule("clone", "contiguous")
def same(site: Site, g: Expression) -> tuple[Flow, ...]:
    return (g,)


@rule("abs")
def abs_(site: Site, g: Expression) -> tuple[Flow, ...]:
    return (g * apply("sign", site.operand(0)),)


@rule("remainder")
def remainder(site: Site, g: Expression) -> tuple[Flow, ...]:
    if not site.needs(1):
        return g, None
    return g, -(g * apply("floor_divide", site.operand(0), site.operand(1)))


@rule("fmod")
def fmod(site: Site, g: Expression) -> tuple[Flow, ...]:
    if not site.needs(1):
        return g, None
    return g, -(g * apply("trunc", site.operand(0) / site.operand(1)))


# powers ---------------------------------------------------------------------------------------------------------------


@rule("pow")
def pow_(site: Site, g: Expression) -> tuple[Flow, ...]:
    base, exponent = site.operand(0), site.operand(1)
    by_base = _power_by_base(site, g, base, exponent) if site.needs(0) else None
    by_exponent = _power_by_exponent(g, base, exponent, site.result) if site.needs(1) else None
    return by_base, by_exponent


def _power_by_base(site: Site, g: Expression, base: Expression, exponent: Expression) -> Flow:
    if exponent.is_tensor:
        slope = exponent * apply("pow", base, exponent - 1)
        return masked(g * slope, apply("eq", exponent, 0), keep=False)
    known = exponent.constant
    if known is not None and known == 0:
        return None
    # x ** 0 has slope 0 at 0 too, where x ** -1 is infinite.
    lowered = exponent - 1 if known is not None else (exponent - 1) * host("bool", exponent)
    value = g * (apply("pow", base, lowered) * exponent if lowered.constant != 1 else base * exponent)
    if root_of_squares(site.builder, site.node):
        return masked(value, apply("eq", site.result, 0), keep=False)
    return value


def _power_by_exponent(g: Expression, base: Expression, exponent: Expression, result: Expression) -> Flow:
    known = base.constant
    if known is not None and known > 0:
        return g * result * math.log(known)
    if not base.is_tensor:
        base = full(base, result.dtype, result.shape)
    value = g * (result * apply("log", base))
    at_zero = apply("bitwise_and", apply("eq", base, 0), apply("ge", exponent, 0))
    return masked(value, at_zero, keep=False)


# functions of two arguments -------------------------------------------------------------------------------------------


@rule("atan2")
def atan2(site: Site, g: Expression) -> tuple[Flow, ...]:
    y, x = site.operand(0), site.operand(1)
    scaled = g / (x * x + y * y)
    return scaled * x, -(scaled * y)


@rule("hypot")
def hypot(site: Site, g: Expression) -> tuple[Flow, ...]:
    scaled = g / site.result
    return scaled * site.operand(0), scaled * site.operand(1)


@rule("copysign")
def copysign(site: Site, g: Expression) -> tuple[Flow, ...]:
    x = site.operand(0)
    return Gradient(g * (site.result / x)).under(masked(g, apply("eq", x, 0), keep=False).masks), None


@rule("nextafter")
def nextafter(site: Site, g: Expression) -> tuple[Flow, ...]:
    return masked(g, apply("eq", site.operand(0), site.operand(1)), keep=False), None


# choice ---------------------------------------------------------------------------------------------------------------


@rule("where")
def where(site: Site, g: Expression) -> tuple[Flow, ...]:
    first_order = dict(site.node.attributes).get("first_order")
    assert first_order is None, "checked before the rule is asked"
    condition = site.raw(0)
    return None, masked(g, condition), masked(g, condition, keep=False)


def _extremum(site: Site, g: Expression, worse: str, better: str) -> tuple[Flow, ...]:
    """Ties of two tensors share; a tensor at a bound that is a number gets all, as in ``clamp``."""
    a, b = site.operand(0), site.operand(1)
    if not b.is_tensor:
        return masked(g, apply(f"{better[0]}e", a, b)), None
    if not a.is_tensor:
        return None, masked(g, apply(f"{better[0]}e", b, a))
    shared = select(apply("eq", a, b), g * 0.5, g)
    return masked(shared, apply(worse, a, b), keep=False), masked(shared, apply(better, a, b), keep=False)


@rule("maximum")
def maximum(site: Site, g: Expression) -> tuple[Flow, ...]:
    return _extremum(site, g, "lt", "gt")


@rule("minimum")
def minimum(site: Site, g: Expression) -> tuple[Flow, ...]:
    return _extremum(site, g, "gt", "lt")


def _quiet_extremum(site: Site, g: Expression, compare: str) -> tuple[Flow, ...]:
    """The first operand wins ties and wins over NaN."""
    a, b = (x if x.is_tensor else full(x, g.dtype, g.shape) for x in (site.operand(0), site.operand(1)))
    first = apply("bitwise_or", apply(compare, a, b), apply("isnan", b))
    return masked(g, first), masked(g, first, keep=False)


@rule("fmax")
def fmax(site: Site, g: Expression) -> tuple[Flow, ...]:
    return _quiet_extremum(site, g, "ge")


@rule("fmin")
def fmin(site: Site, g: Expression) -> tuple[Flow, ...]:
    return _quiet_extremum(site, g, "le")
