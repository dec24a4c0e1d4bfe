# SPDX-License-Identifier: Apache-2.0
"""Segments that need no kernel: every output is empty."""

from __future__ import annotations

import attrs

from fusedsl.graph.graph import Graph
from fusedsl.schedulers.base import KernelPlan, Problem, Refusal

NAME = "no_op"


@attrs.frozen
class NoOpParams:
    """Nothing to choose."""


def can_schedule_compile_time(graph: Graph) -> Refusal | None:
    """Accepts graphs whose outputs all have a dim that is known to be 0."""
    for output in graph.outputs:
        if 0 not in graph[output].tensor.shape:
            return Refusal("concrete_output", f"{graph[output].name} has elements to compute")
    return None


def can_schedule_run_time(problem: Problem) -> Refusal | None:
    """Always: a size of 0 is known when tracing."""
    return None


def compute_heuristics(problem: Problem) -> NoOpParams:
    """Nothing to choose."""
    return NoOpParams()


def schedule(problem: Problem, params: NoOpParams) -> KernelPlan:
    """No launches."""
    return KernelPlan(())
