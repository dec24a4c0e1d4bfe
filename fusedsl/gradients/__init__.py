# SPDX-License-Identifier: Apache-2.0
"""Gradients: a Graph becomes a forward graph that saves little and a backward graph, both of the same ops."""

from fusedsl.gradients.backward import Backward, ForwardInput, ForwardOutput, IncomingGradient, Source
from fusedsl.gradients.derive import derive
from fusedsl.gradients.errors import GradientError, NotDifferentiable, SecondDerivative
from fusedsl.gradients.partition import Choice

__all__ = [
    "Backward",
    "Choice",
    "ForwardInput",
    "ForwardOutput",
    "GradientError",
    "IncomingGradient",
    "NotDifferentiable",
    "SecondDerivative",
    "Source",
    "derive",
]
