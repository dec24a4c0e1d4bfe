# SPDX-License-Identifier: Apache-2.0
"""Errors of differentiation."""

from __future__ import annotations

from fusedsl.graph.span import FuseError


class GradientError(FuseError):
    """The function, or a part of it, has no gradient that fusedsl can derive."""


class InPlaceGradient(GradientError):
    """A tensor that is changed in place would carry a gradient, or its old value is needed for one."""


class NotDifferentiable(GradientError):
    """An op on the way from a wanted input to an output has no derivative."""


class SecondDerivative(GradientError):
    """A gradient was differentiated again where only first derivatives are right."""
