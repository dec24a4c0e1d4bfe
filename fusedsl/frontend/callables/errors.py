# SPDX-License-Identifier: Apache-2.0
"""Errors of op handlers; the visitor adds the user's line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fusedsl.graph.span import FuseError

if TYPE_CHECKING:
    from fusedsl.frontend.callables.values import ScalarValue


class OpError(FuseError):
    """A wrong use of an op: shapes, dtypes or options that torch refuses or fusedsl does not support."""


class NeedsStatic(OpError):
    """The structure of the graph depends on a host scalar (a dim, a size, an exponent).

    Whoever drives the trace can guard the scalar, replace it by ``value.hint`` and call the handler again.

    Attributes:
        value: the host scalar.
        role: what it is used as, for the message.
    """

    def __init__(self, value: ScalarValue, role: str) -> None:
        self.value = value
        self.role = role
        super().__init__(
            f"{role} must be known when tracing, but it is computed at call time",
            expected="a Python number, an argument, or the size of a dim",
        )
