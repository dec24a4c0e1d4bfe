# SPDX-License-Identifier: Apache-2.0
"""``math`` and Python's number builtins, on static numbers and on host scalars."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from fusedsl.frontend.callables.errors import OpError
from fusedsl.frontend.callables.table import handles
from fusedsl.frontend.callables.values import TensorValue, host, is_value

#: Functions of ``math`` from numbers to one number.
_MATH = (
    "acos",
    "acosh",
    "asin",
    "asinh",
    "atan",
    "atan2",
    "atanh",
    "cbrt",
    "ceil",
    "comb",
    "copysign",
    "cos",
    "cosh",
    "degrees",
    "erf",
    "erfc",
    "exp",
    "exp2",
    "expm1",
    "fabs",
    "factorial",
    "floor",
    "fmod",
    "gamma",
    "gcd",
    "hypot",
    "isclose",
    "isfinite",
    "isinf",
    "isnan",
    "isqrt",
    "lcm",
    "ldexp",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "nextafter",
    "perm",
    "pow",
    "radians",
    "remainder",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
    "ulp",
)


def _enter_host(name: str, qualified: str, python: Callable[..., Any], hint: str) -> None:
    def handler(builder: Any, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(x, TensorValue) for x in args):
            raise OpError(f"{qualified} takes numbers, got a tensor", expected="Python numbers", hint=hint)
        if not any(is_value(x) for x in (*args, *kwargs.values())):
            return python(*args, **kwargs)
        if kwargs:
            raise OpError(
                f"{qualified}: keyword arguments are not supported on host scalars", hint="pass them by position"
            )
        return host(name, *args)

    handler.__name__ = qualified
    handles(qualified)(handler)


for _name in _MATH:
    if hasattr(math, _name):
        _enter_host(f"math.{_name}", f"math.{_name}", getattr(math, _name), f"torch.{_name}")

for _python, _hint in [
    (float, "x.float() converts the dtype; a tensor's value is known only on the GPU"),
    (int, "x.int() converts the dtype; a tensor's value is known only on the GPU"),
    (bool, "x.bool() converts the dtype; a tensor's value is known only on the GPU"),
]:
    _enter_host(_python.__name__, f"builtins.{_python.__name__}", _python, _hint)

_enter_host("min", "builtins.min", min, "torch.minimum(a, b) or x.amin()")
_enter_host("max", "builtins.max", max, "torch.maximum(a, b) or x.amax()")
