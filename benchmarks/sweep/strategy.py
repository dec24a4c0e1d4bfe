# SPDX-License-Identifier: Apache-2.0
"""What the planner chooses for an operation at a row length; nothing is run."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import attrs
import torch

import fusedsl
from benchmarks.operations import KINDS, Operation, Shape
from fusedsl.explain import Explanation
from fusedsl.numba_cuda.kernel import KernelSource

#: Bytes of the matrix, whatever its row length.
TENSOR_BYTES = 256 << 20


def matrix_shape(length: int, dtype: torch.dtype, nbytes: int = TENSOR_BYTES) -> Shape:
    """Rows of ``length`` elements in about ``nbytes`` bytes; at least one row."""
    return max(nbytes // (length * dtype.itemsize), 1), length


@attrs.frozen
class Strategy:
    """How a row length is handled.

    Attributes:
        label: short, for charts: where a row stays, or the schedulers where there are several.
        params: the parameters of every segment as text.
        key: what distinguishes strategies: the parameters without those that follow every length.
        sources: the kernels.
    """

    label: str
    params: tuple[str, ...]
    key: Hashable
    sources: tuple[KernelSource, ...] = attrs.field(repr=False)


#: Parameters that follow every length; all others tell a change of strategy.
_FOLLOWING = ("batch", "exact", "vector", "prefetch")


def _key(params: Any) -> Hashable:
    if not attrs.has(type(params)):
        return None
    fields = attrs.asdict(params, filter=lambda attribute, _: attribute.name not in _FOLLOWING)
    return tuple(sorted((name, str(value)) for name, value in fields.items()))


def _label(scheduler: str, params: Any) -> str:
    storage, cluster = getattr(params, "storage", ""), getattr(params, "cluster", 1)
    if scheduler != "inner_persistent" or not storage:
        return scheduler
    return storage if cluster == 1 else f"{storage}, cluster {cluster}"


class Planner:
    """Asks for the strategies of one operation and dtype.

    Args:
        operation: a function of a matrix.
        dtype: of all its arguments.
        arch: the GPU to plan for; None: the one that ``fusedsl.config`` names.
        nbytes: size of the matrix.
    """

    def __init__(
        self, operation: Operation, dtype: torch.dtype, arch: str | None = None, nbytes: int = TENSOR_BYTES
    ) -> None:
        self.operation = operation
        self.dtype = dtype
        self._function = fusedsl.fuse(operation.function, fallback="error")
        self._arch = arch
        self._nbytes = nbytes

    def strategy(self, length: int) -> Strategy:
        """The strategy for rows of ``length``."""
        shape = matrix_shape(length, self.dtype, self._nbytes)
        arguments = [
            torch.empty(KINDS[kind].shape(shape), dtype=KINDS[kind].dtype or self.dtype, device="meta")
            for kind in self.operation.arguments
        ]
        explanation: Explanation = self._function.explain(*arguments, arch=self._arch)
        segments = explanation.segments
        key = tuple((s.scheduler, _key(s.params)) for s in segments)
        labels = dict.fromkeys(_label(s.scheduler, s.params) for s in segments)
        launches = [launch for s in segments if s.plan is not None for launch in s.plan.launches]
        sources = tuple(launch.source for launch in launches)
        return Strategy(" + ".join(labels), tuple(str(s.params) for s in segments), key, sources)

    def key(self, length: int) -> Hashable:
        """What changes where the strategy does."""
        return self.strategy(length).key
