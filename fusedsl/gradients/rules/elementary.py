# SPDX-License-Identifier: Apache-2.0
"""Derivatives of functions of one tensor."""

from __future__ import annotations

import math

from fusedsl.gradients.expression import Expression, apply, wide
from fusedsl.gradients.gradient import masked
from fusedsl.gradients.patterns import exponential, root_of_squares
from fusedsl.gradients.rules.table import Flow, Site, Upstream, plus_one, rule
from fusedsl.graph.opaque import CallTemplate, Hole

# roots and exponentials -----------------------------------------------------------------------------------------------


@rule("sqrt")
def sqrt(site: Site, g: Expression) -> tuple[Flow, ...]:
    y = site.result
    value = g / (y * 2)
    if root_of_squares(site.builder, site.node):
        return (masked(value, apply("eq", y, 0), keep=False),)
    return (value,)


@rule("rsqrt")
def rsqrt(site: Site, g: Expression) -> tuple[Flow, ...]:
    y = site.result
    return (g * (y * y * y * -0.5),)


@rule("reciprocal")
def reciprocal(site: Site, g: Expression) -> tuple[Flow, ...]:
    y = site.result
    below = site.builder.nodes[site.node.inputs[0]]
    if below.op == "mul" and below.inputs[0] == below.inputs[1]:
        # 1 / x**2: infinite at 0, where y * y * x would be inf * 0.
        x = wide(Expression(site.builder, below.inputs[0]))
        return (Upstream(below.inputs[0], g * (y * -2 / x)),)
    return (-(g * y * y),)


@rule("exp")
def exp(site: Site, g: Expression) -> tuple[Flow, ...]:
    return (g * site.result,)


@rule("exp2")
def exp2(site: Site, g: Expression) -> tuple[Flow, ...]:
    return (g * site.result * math.log(2),)


@rule("expm1")
def expm1(site: Site, g: Expression) -> tuple[Flow, ...]:
    return (g * apply("exp", site.operand(0)),)


@rule("log")
def log(site: Site, g: Expression) -> tuple[Flow, ...]:
    return (g / site.operand(0),)


@rule("log2")
def log2(site: Site, g: Expression) -> tuple[Flow, ...]:
    return (g / (site.operand(0) * math.log(2)),)


@rule("log10")
def log10(site: Site, g: Expression) -> tuple[Flow, ...]:
    return (g / (site.operand(0) * math.log(10)),)


@rule("log1p")
def log1p(site: Site, g: Expression) -> tuple[Flow, ...]:
    logit = exponential(site.builder, site.node.inputs[0])
    if logit is not None:
        # log(1 + exp(z)): exp(z) / (1 + exp(z)) would be inf / inf for large z.
        return (Upstream(logit, g * apply("sigmoid", Expression(site.builder, logit))),)
    return (g / (site.operand(0) + 1),)


@rule("sigmoid")
def sigmoid(site: Site, g: Expression) -> tuple[Flow, ...]:
    y = site.result
    return (g * ((1 - y) * y),)


# circular functions ---------------------------------------------------------------------------------------------------


@rule("sin")
def sin(site: Site, g: Expression) -> tuple[Flow, ...]:
    return (g * apply("cos", site.operand(0)),)


@rule("cos")
def cos(site: Site, g: Expression) -> tuple[Flow, ...]:
    return (-(g * apply("sin", site.operand(0))),)


@rule("tan")
def tan(site: Site, g: Expression) -> tuple[Flow, ...]:
    y = site.result
    return (g * (y * y + 1),)


@rule("asin")
def asin(site: Site, g: Expression) -> tuple[Flow, ...]:
    x = site.operand(0)
    return (g * apply("rsqrt", 1 - x * x),)


@rule("acos")
def acos(site: Site, g: Expression) -> tuple[Flow, ...]:
    x = site.operand(0)
    return (-(g * apply("rsqrt", 1 - x * x)),)


@rule("atan")
def atan(site: Site, g: Expression) -> tuple[Flow, ...]:
    x = site.operand(0)
    return (g / (x * x + 1),)


# hyperbolic functions -------------------------------------------------------------------------------------------------


@rule("sinh")
def sinh(site: Site, g: Expression) -> tuple[Flow, ...]:
    return (g * apply("cosh", site.operand(0)),)


@rule("cosh")
def cosh(site: Site, g: Expression) -> tuple[Flow, ...]:
    return (g * apply("sinh", site.operand(0)),)


@rule("tanh")
def tanh(site: Site, g: Expression) -> tuple[Flow, ...]:
    users = site.users[site.node.id]
    if users and all(plus_one(site.builder, u) == site.node.id for u in users):
        # tanh(u) + 1 is 2 * sigmoid(2 * u); so is its slope accurate where tanh is close to -1.
        half = apply("sigmoid", site.operand(0) * 2)
        return (g * ((1 - half) * half * 4),)
    y = site.result
    return (g * (1 - y * y),)


@rule("asinh")
def asinh(site: Site, g: Expression) -> tuple[Flow, ...]:
    x = site.operand(0)
    return (g * apply("rsqrt", x * x + 1),)


@rule("acosh")
def acosh(site: Site, g: Expression) -> tuple[Flow, ...]:
    x = site.operand(0)
    return (g * apply("rsqrt", x * x - 1),)


@rule("atanh")
def atanh(site: Site, g: Expression) -> tuple[Flow, ...]:
    x = site.operand(0)
    return (g / (1 - x * x),)


# special functions ----------------------------------------------------------------------------------------------------


@rule("erf")
def erf(site: Site, g: Expression) -> tuple[Flow, ...]:
    x = site.operand(0)
    return (g * (apply("exp", -(x * x)) * (2 / math.sqrt(math.pi))),)


@rule("erfc")
def erfc(site: Site, g: Expression) -> tuple[Flow, ...]:
    x = site.operand(0)
    return (g * (apply("exp", -(x * x)) * (-2 / math.sqrt(math.pi))),)


@rule("erfinv")
def erfinv(site: Site, g: Expression) -> tuple[Flow, ...]:
    y = site.result
    return (g * (apply("exp", y * y) * (math.sqrt(math.pi) / 2)),)


@rule("lgamma")
def lgamma(site: Site, g: Expression) -> tuple[Flow, ...]:
    return (g * apply("digamma", site.operand(0)),)


@rule("digamma")
def digamma(site: Site, g: Expression) -> tuple[Flow, ...]:
    x = site.operand(0)
    call = CallTemplate((1, Hole(0)), ())
    trigamma = site.builder.add("opaque", (x.id,), x.type, function="torch.polygamma", call=call, results=1)
    return (g * Expression(site.builder, trigamma),)
