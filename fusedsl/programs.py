# SPDX-License-Identifier: Apache-2.0
"""The programs of one graph: planned and bound once for every layout of its inputs."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from fusedsl.config import config
from fusedsl.executor import Run, bind_program
from fusedsl.frontend.records import Update
from fusedsl.graph.graph import Graph
from fusedsl.keys import ALIGNMENT
from fusedsl.numba_cuda.device import DeviceProperties, properties, resolve
from fusedsl.pipeline import Program, plan_graph
from fusedsl.schedulers.base import Layout
from fusedsl.stats import COUNTERS


def layout_of(tensor: Tensor) -> Layout:
    """Sizes, strides and alignment of a tensor; a meta tensor counts as aligned."""
    alignment = 16 if tensor.device.type == "meta" else ALIGNMENT[tensor.data_ptr() & 15]
    return Layout(tuple(tensor.shape), tuple(tensor.stride()), alignment)


def layout_key(tensors: Sequence[Tensor]) -> tuple[Any, ...]:
    """What a program assumes of its inputs, beside what their graph does."""
    return tuple([(t.shape, t.stride(), ALIGNMENT[t.data_ptr() & 15]) for t in tensors])


def device_of(tensors: Sequence[Tensor]) -> torch.device:
    """The device a call runs on: that of its tensors, the CPU if it has none."""
    return tensors[0].device if tensors else torch.device("cpu")


def properties_of(device: torch.device) -> DeviceProperties:
    """The GPU to plan for: the device itself; for CPU and meta tensors the one ``config.interpret_arch`` names."""
    return properties(device.index) if device.type == "cuda" else resolve(config.interpret_arch)


def trim(cache: dict[Any, Any], limit: int) -> None:
    """Forget the oldest half of a cache that has outgrown its limit."""
    if len(cache) > limit:
        for key in list(cache)[: len(cache) // 2]:
            cache.pop(key, None)


@attrs.define(eq=False)
class Programs:
    """Plans and runs a graph. Safe to use from many threads.

    Attributes:
        graph: what is run.
        numerics: see :class:`fusedsl.options.Options`.
        updates: outputs that are new values of inputs.
    """

    graph: Graph
    numerics: str
    updates: tuple[Update, ...] = ()
    _runs: dict[tuple[Any, ...], Run] = attrs.field(factory=dict)
    _lock: threading.RLock = attrs.field(factory=threading.RLock)

    def find(self, tensors: Sequence[Tensor], device: torch.device) -> Run:
        """The program for inputs laid out as these, ready to run on ``device``; least recently used ones are forgotten.

        Raises:
            FuseError: it cannot be planned, compiled or loaded.
        """
        key = (device, layout_key(tensors))
        with self._lock:
            run = self._runs.pop(key, None)
            if run is None:
                program = self.plan([layout_of(tensor) for tensor in tensors], properties_of(device))
                run = bind_program(program, tensors, device)
            self._runs[key] = run
            trim(self._runs, config.max_cached_calls)
        return run

    def plan(self, layouts: Sequence[Layout], device: DeviceProperties) -> Program:
        """The program for inputs with these layouts on ``device``."""
        COUNTERS.plans += 1
        inputs = dict(zip(self.graph.inputs, layouts, strict=True))
        return plan_graph(self.graph, inputs, device, self.numerics, self.updates)

    def __len__(self) -> int:
        return len(self._runs)
