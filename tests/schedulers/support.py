# SPDX-License-Identifier: Apache-2.0
"""Scheduler tests force parameters: problems of functions taken whole, plans for given parameters, texts to compare."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch

import fusedsl
from fusedsl.numba_cuda.device import resolve
from fusedsl.numba_cuda.launch import describe
from fusedsl.pipeline import plan_graph
from fusedsl.programs import layout_of
from fusedsl.schedulers import SCHEDULERS
from fusedsl.schedulers.base import KernelPlan, Problem, Refusal


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A tensor without data."""
    return torch.empty(shape, dtype=dtype, device="meta")


def whole(fn: Callable[..., Any], *args: Any, arch: str = "H200") -> Problem:
    """The problem of a function taken as one segment, whether or not a scheduler takes it."""
    graph = fusedsl.fuse(fn).graph(*args)
    tensors = [x for x in args if isinstance(x, torch.Tensor)]
    inputs = {i: layout_of(x) for i, x in zip(graph.inputs, tensors, strict=True)}
    program = plan_graph(graph, inputs, resolve(arch), "default")
    allocated = {i: program.allocations[i] for i in graph.outputs if i in program.allocations}
    return Problem(graph, {**inputs, **allocated}, program.device)


def scheduler(name: str) -> ModuleType:
    """A scheduler by name."""
    return next(s for s in SCHEDULERS if name == s.NAME)


def refusal(name: str, problem: Problem) -> Refusal | None:
    """What a scheduler says to a problem."""
    asked = scheduler(name)
    found: Refusal | None = asked.can_schedule_compile_time(problem.graph) or asked.can_schedule_run_time(problem)
    return found


def text_of(plan: KernelPlan) -> str:
    """The kernels of a plan with their geometry; line numbers of this checkout's tests are left out."""
    parts = [f"# {describe(launch.geometry)}\n{launch.source.text}" for launch in plan.launches]
    return re.sub(r"(\w+\.py):\d+", r"\1", "\n\n".join(parts))
