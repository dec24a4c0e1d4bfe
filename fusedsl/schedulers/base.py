# SPDX-License-Identifier: Apache-2.0
"""The contract every scheduler answers, and the plan it hands to the executor.

A scheduler is a module with four functions:

* ``can_schedule_compile_time(graph) -> Refusal | None``: may look at structure and dtypes only;
* ``can_schedule_run_time(problem) -> Refusal | None``: may look at extents, strides and the device;
* ``compute_heuristics(problem) -> Params``: a frozen, hashable object that determines the kernel text;
* ``schedule(problem, params) -> KernelPlan``: the text and how to launch it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import attrs
import torch

from fusedsl.analysis.refusal import Refusal as Refusal
from fusedsl.graph.graph import Graph
from fusedsl.graph.types import Extent, Symbol
from fusedsl.numba_cuda.device import DeviceProperties
from fusedsl.numba_cuda.kernel import Geometry, KernelSource


@attrs.frozen
class Layout:
    """Where a tensor lies: sizes and strides in elements, alignment of its start in bytes (a power of two <= 16)."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    alignment: int = 16

    @property
    def numel(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count


@attrs.frozen
class Problem:
    """A segment with everything a scheduler may know about one call.

    Attributes:
        graph: the segment.
        layouts: of every tensor input and output, by node id.
        device: properties of the device the kernel will run on.
        numerics: "default" or "eager" (round wherever eager torch rounds).
        extents: run-time sizes of symbols; of those that no input or output of the segment carries at least.
    """

    graph: Graph
    layouts: Mapping[int, Layout] = attrs.field(hash=False)
    device: DeviceProperties
    numerics: str = "default"
    extents: Mapping[Symbol, int] = attrs.field(factory=dict, hash=False, repr=False)

    def sizes(self) -> dict[Symbol, int]:
        """The run-time size of every symbol."""
        known = dict(self.extents)
        for node_id, layout in self.layouts.items():
            for extent, size in zip(self.graph[node_id].tensor.shape, layout.shape, strict=True):
                if isinstance(extent, Symbol):
                    known[extent] = size
        return known


def extent_size(extent: Extent, sizes: Mapping[Symbol, int]) -> int:
    """The run-time size of an extent."""
    return extent if isinstance(extent, int) else sizes[extent]


@attrs.frozen
class TensorArgument:
    """A pointer to the first element of an input or output."""

    node: int


@attrs.frozen
class WorkspaceArgument:
    """A pointer to a temporary buffer of the plan."""

    index: int


@attrs.frozen
class IntArgument:
    """An extent or stride, fixed for the plan."""

    value: int


@attrs.frozen
class ScalarArgument:
    """A host scalar of the graph, evaluated at every call and converted to ``kind`` (a kernel parameter type)."""

    node: int
    kind: str


Argument = TensorArgument | WorkspaceArgument | IntArgument | ScalarArgument


@attrs.frozen
class Workspace:
    """A temporary buffer.

    ``zeroed``: it holds zeros before the plan first runs, and what a run leaves there serves the next one (the counter
    of grid barriers), so the executor keeps one such buffer a stream.
    """

    dtype: torch.dtype
    numel: int
    zeroed: bool = False


@attrs.frozen
class Launch:
    """One kernel launch."""

    source: KernelSource
    geometry: Geometry
    arguments: tuple[Argument, ...]

    def renumbered(self, origin: Sequence[int], buffers: Mapping[int, int] | None = None) -> Launch:
        """With arguments that name nodes of another graph.

        Args:
            origin: per node of this launch's graph, the node of the other one.
            buffers: nodes that are temporary buffers, and which.
        """

        def renumber(argument: Argument) -> Argument:
            if isinstance(argument, TensorArgument) and buffers and argument.node in buffers:
                return WorkspaceArgument(buffers[argument.node])
            if isinstance(argument, (TensorArgument, ScalarArgument)):
                return attrs.evolve(argument, node=origin[argument.node])
            return argument

        return attrs.evolve(self, arguments=tuple(renumber(a) for a in self.arguments))


@attrs.frozen
class KernelPlan:
    """What to run for a segment: launches in order on one stream, and the temporary buffers they share."""

    launches: tuple[Launch, ...]
    workspaces: tuple[Workspace, ...] = ()

    def renumbered(self, origin: Sequence[int]) -> KernelPlan:
        """See :meth:`Launch.renumbered`."""
        return attrs.evolve(self, launches=tuple(launch.renumbered(origin) for launch in self.launches))


class Scheduler(Protocol):
    """The shape of a scheduler module."""

    NAME: str

    @staticmethod
    def can_schedule_compile_time(graph: Graph) -> Refusal | None: ...

    @staticmethod
    def can_schedule_run_time(problem: Problem) -> Refusal | None: ...

    @staticmethod
    def compute_heuristics(problem: Problem) -> Any: ...

    @staticmethod
    def schedule(problem: Problem, params: Any) -> KernelPlan: ...
