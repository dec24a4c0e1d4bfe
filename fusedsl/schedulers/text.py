# SPDX-License-Identifier: Apache-2.0
"""The text of one kernel: indented lines, comments, constants, names and parameters, and the finished source.

What stands in the lines is :mod:`fusedsl.schedulers.emit`'s.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Iterator

import attrs
import torch

from fusedsl.graph.graph import Graph, Node
from fusedsl.graph.types import dtype_name
from fusedsl.numba_cuda.kernel import Geometry, KernelSource
from fusedsl.schedulers.base import (
    Argument,
    IntArgument,
    Launch,
    ScalarArgument,
    TensorArgument,
    WorkspaceArgument,
)
from fusedsl.schedulers.names import local_name


@attrs.frozen
class Parameter:
    """A kernel parameter: its name, its type in the signature and what a launch passes for it."""

    name: str
    type: str
    argument: Argument


#: Order of a kernel's parameters: pointers, extents and strides, scalars.
_RANKS = {TensorArgument: 0, WorkspaceArgument: 1, IntArgument: 2, ScalarArgument: 3}


class KernelText:
    """Text of one kernel under construction.

    ``constant_prefix`` is put before the names of constants, so that a second loop structure has its own.
    """

    def __init__(self, graph: Graph, name: str, header: Iterable[str]) -> None:
        self.graph = graph
        self.name = name
        self.header = tuple(header)
        self.constant_prefix = ""
        self._constants: dict[str, str] = {}
        self._lines: list[str] = []
        self._indent = 1
        self._parameters: dict[str, Parameter] = {}
        self._names: set[str] = set()
        self._quoted: tuple[str, int] | None = None

    # lines ---------------------------------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """Append one line at the current indentation."""
        self._lines.append("    " * self._indent + text)

    def comment(self, node: Node) -> None:
        """Quote the user's line above the code it became, once per run of code from that line."""
        span = node.span
        if span is None or (span.file, span.line) == self._quoted:
            return
        self._quoted = (span.file, span.line)
        self.line(f"# {span.file.rsplit('/', 1)[-1]}:{span.line}  {span.text.strip()}")

    @contextlib.contextmanager
    def block(self, head: str | None = None) -> Iterator[None]:
        """An indented block under ``head``; without one the lines stay where they are."""
        if head is None:
            yield
            return
        self.line(head)
        self._indent += 1
        yield
        self._indent -= 1
        if head.startswith("for"):
            self._quoted = None

    def constant(self, name: str, value: int | float) -> str:
        """A module-level constant of the text."""
        name = self.constant_prefix + name
        text = repr(value) if not isinstance(value, float) or math.isfinite(value) else f'float("{value}")'
        assert self._constants.setdefault(name, text) == text, f"constant {name} has two values"
        return name

    def fresh(self, name: str) -> str:
        """A local name close to ``name`` that hides nothing and is not taken."""
        found = local_name(name, self._names)
        self._names.add(found)
        return found

    # parameters ----------------------------------------------------------------------------------------------------

    def pointer(self, node_id: int) -> str:
        """The pointer parameter of an input or output."""
        key = f"tensor {node_id}"
        if key not in self._parameters:
            node = self.graph[node_id]
            name = self.fresh(f"{node.name.strip('_')}_ptr")
            self._parameters[key] = Parameter(name, "*" + dtype_marker(node.tensor.dtype), TensorArgument(node_id))
        return self._parameters[key].name

    def workspace(self, index: int, dtype: torch.dtype) -> str:
        """The pointer parameter of a temporary buffer."""
        key = f"workspace {index} {dtype_name(dtype)}"
        if key not in self._parameters:
            name = self.fresh(f"workspace{index}_ptr")
            self._parameters[key] = Parameter(name, "*" + dtype_marker(dtype), WorkspaceArgument(index))
        return self._parameters[key].name

    def integer(self, name: str, value: int) -> str:
        """An int64 parameter: an extent or stride."""
        argument = IntArgument(value)
        known = self._parameters.setdefault(f"int {name}", Parameter(name, "int64", argument))
        assert known.argument == argument, f"parameter {name} has two values"
        self._names.add(name)
        return name

    def scalar(self, node_id: int, dtype: torch.dtype) -> str:
        """Text of a host scalar used in arithmetic of ``dtype``: a literal or a parameter."""
        node = self.graph[node_id]
        if node.op == "constant":
            return self._literal(node.attribute("value"))
        kind = scalar_parameter(dtype)
        key = f"scalar {node_id} {kind}"
        if key not in self._parameters:
            self._parameters[key] = Parameter(self.fresh(node.name), kind, ScalarArgument(node_id, kind))
        return self._parameters[key].name

    def _literal(self, value: bool | int | float) -> str:
        if isinstance(value, float) and not math.isfinite(value):
            if math.isnan(value):
                return self.constant("NAN", float("nan"))
            text = self.constant("INF", float("inf"))
            return text if value > 0 else f"(-{text})"
        return repr(value) if not (isinstance(value, (int, float)) and value < 0) else f"({value!r})"

    # result --------------------------------------------------------------------------------------------------------

    def source(self, threads: int, min_blocks: int | None = None, max_registers: int | None = None) -> KernelSource:
        """The finished text."""
        parameters = self._ordered()
        described = ", ".join(f"{p.name}: {p.type}" for p in parameters)
        head = [f"# {text}" if text else "#" for text in (*self.header, f"parameters: {described}")]
        constants = [f"{name} = {text}" for name, text in self._constants.items()]
        define = f"def {self.name}({', '.join(p.name for p in parameters)}):"
        text = "\n".join([*head, *constants, "", "", define, *self._lines]) + "\n"
        signature = tuple(p.type for p in parameters)
        return KernelSource(self.name, text, signature, threads, min_blocks, max_registers)

    def launch(self, source: KernelSource, geometry: Geometry) -> Launch:
        """A launch of the finished text with the arguments of its parameters."""
        return Launch(source, geometry, tuple(p.argument for p in self._ordered()))

    def _ordered(self) -> list[Parameter]:
        return sorted(self._parameters.values(), key=lambda p: _RANKS[type(p.argument)])


def dtype_marker(dtype: torch.dtype) -> str:
    """The kernel language's name of a torch dtype."""
    return "boolean" if dtype == torch.bool else dtype_name(dtype)


def scalar_parameter(dtype: torch.dtype) -> str:
    """The kernel parameter type that carries a host scalar into arithmetic of ``dtype``."""
    if dtype == torch.bool:
        return "boolean"
    if dtype == torch.float64:
        return "float64"
    return "float32" if dtype.is_floating_point else "int64"
