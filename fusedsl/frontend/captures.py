# SPDX-License-Identifier: Apache-2.0
"""Values from outside the function: what they become while tracing, and the guards under which that stays right."""

from __future__ import annotations

import enum
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from fusedsl.frontend.callables import ScalarValue, TensorValue
from fusedsl.frontend.errors import UnsupportedArgument
from fusedsl.frontend.records import AccessPath, Guard
from fusedsl.frontend.values import Captured, Function, describe_python
from fusedsl.graph.builder import Builder
from fusedsl.graph.graph import Node
from fusedsl.graph.types import Symbol

_IDENTICAL = (bool, type(None), type(Ellipsis), type(NotImplemented), torch.dtype, torch.layout, torch.memory_format)
_EQUAL = (int, float, complex, str, bytes, torch.device, slice, range)
_CONTAINERS = (list, tuple, dict, set, frozenset)
_BUILTIN_CALLABLES = (
    types.BuiltinFunctionType,
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
)
_TRUSTED = frozenset(sys.stdlib_module_names) - {"__main__", "this"} | {"torch", "numpy"}

Expression = tuple[Any, ...]


def is_trusted(module: str | None) -> bool:
    """Whether a module's attributes are taken as fixed: torch, numpy and the standard library."""
    return (module or "").partition(".")[0] in _TRUSTED


def is_torch(value: Any) -> bool:
    """Whether a callable belongs to torch itself."""
    module = getattr(value, "__module__", None)
    return isinstance(module, str) and module.partition(".")[0] == "torch"


class Captures:
    """Inputs and guards of a trace.

    Attributes:
        tensors: path of each graph input, in order.
        scalars: path of each scalar input, in order.
        handles: the one handle of each graph input, in order; in-place operations change the node behind it.
        examples: node id of a graph input -> the tensor seen while tracing.
        classes: where each captured class was found.
        where: ``file:line`` of what is being traced, for the guards' reasons.
        module: globals of the fused function.
    """

    def __init__(self, builder: Builder, where: Callable[[], str], module: dict[str, Any]) -> None:
        self.builder = builder
        self.module = module
        self.where = where
        self.tensors: list[AccessPath] = []
        self.scalars: list[AccessPath] = []
        self.handles: list[TensorValue] = []
        self.examples: dict[int, torch.Tensor] = {}
        self.classes: dict[type, AccessPath] = {}
        self._inputs: dict[AccessPath, TensorValue] = {}
        self._scalar_paths: dict[int, AccessPath] = {}
        self._input_paths: dict[int, AccessPath] = {}
        self._origins: dict[Symbol, tuple[int, int]] = {}
        self._captured: dict[AccessPath, Any] = {}
        self._guards: dict[tuple[Any, ...], Guard] = {}

    # guards --------------------------------------------------------------------------------------------------------

    def guard(self, path: AccessPath, check: str, value: Any, condition: str) -> None:
        """Record a guard; ``condition`` says it in words."""
        key = (path, check, repr(value) if check in ("size", "same_size", "condition", "has", "instance") else None)
        if key not in self._guards:
            self._guards[key] = Guard(path, check, value, f"{self.where()}: {condition}")

    def finish_guards(self) -> tuple[Guard, ...]:
        """All guards, with those for extents that the graph needs equal."""
        for pair in self.builder.equalities:
            known = [self._origins[x] for x in pair if isinstance(x, Symbol) and x in self._origins]
            numbers = [x for x in pair if isinstance(x, int)]
            places = [(self._input_paths[node], dim) for node, dim in known]
            if len(places) == 2:
                (p, dim), (q, other) = places
                self.guard(p, "same_size", (dim, q, other), f"{p}.shape[{dim}] == {q}.shape[{other}]")
            elif places and numbers:
                self.guard_size(*places[0], numbers[0])
            else:
                self.guard_all_sizes()
        return tuple(self._guards.values())

    def guard_all_sizes(self) -> None:
        """Make the trace hold for the sizes seen only (an extent depends on them in a way the graph cannot express)."""
        for node, path in self._input_paths.items():
            for dim, extent in enumerate(self.builder.tensor(node).shape):
                if isinstance(extent, Symbol):
                    self.guard_size(path, dim, extent.hint)

    def guard_size(self, path: AccessPath, dim: int, extent: int) -> None:
        """Make the trace hold for one extent of a tensor only."""
        self.guard(path, "size", (dim, extent), f"{path}.shape[{dim}] == {extent}")

    def expression(self, node_id: int) -> Expression | None:
        """A host scalar as an expression over call-time values; None if it depends on the size of an opaque result."""
        node = self.builder.nodes[node_id]
        match node.op:
            case "constant":
                return ("constant", node.attribute("value"))
            case "scalar_input":
                return ("number", self._scalar_paths[node_id])
            case "size":
                return self._size_expression(node)
            case "scalar":
                operands = tuple(self.expression(i) for i in node.inputs)
                return None if None in operands else ("call", node.attribute("function"), operands)
            case _:
                raise AssertionError(f"{node.op} is not a host scalar")

    def _size_expression(self, node: Node) -> Expression | None:
        extent = self.builder.tensor(node.inputs[0]).shape[node.attribute("dim")]
        if isinstance(extent, int):
            return ("constant", extent)
        if extent not in self._origins:
            return None
        source, dim = self._origins[extent]
        return ("size", self._input_paths[source], dim)

    def origin(self, symbol: Symbol) -> tuple[TensorValue, int] | None:
        """The graph input and dim that introduced a symbol."""
        found = self._origins.get(symbol)
        return None if found is None else (TensorValue(self.builder, found[0]), found[1])

    def number_path(self, node_id: int) -> AccessPath | None:
        """Where a scalar input comes from."""
        return self._scalar_paths.get(node_id)

    # values --------------------------------------------------------------------------------------------------------

    def number(self, value: int | float, path: AccessPath) -> ScalarValue:
        """A Python number that is an argument: known only at call time."""
        node = self.builder.scalar_input(_name(path), type(value).__name__)
        self.scalars.append(path)
        self._scalar_paths[node] = path
        return ScalarValue(self.builder, node, value)

    def tensor(self, value: torch.Tensor, path: AccessPath) -> TensorValue:
        """A tensor that is an argument or captured."""
        known = self._inputs.get(path)
        if known is not None:
            return known
        if value.layout is not torch.strided or value.dtype.is_complex:
            kind = "complex" if value.dtype.is_complex else "sparse"
            raise UnsupportedArgument(path=f"'{path}'", found=f"a {kind} tensor", hint="pass dense real tensors")
        node = self.builder.input(_name(path), value.dtype, value.shape)
        self.tensors.append(path)
        self.examples[node] = value
        self._input_paths[node] = path
        for dim, extent in enumerate(self.builder.tensor(node).shape):
            if isinstance(extent, Symbol):
                self._origins[extent] = (node, dim)
        found = self._inputs[path] = TensorValue(self.builder, node)
        self.handles.append(found)
        return found

    def input_index(self, value: TensorValue) -> int | None:
        """Place among the graph's inputs of the tensor that a handle stands for, if it is an argument or captured."""
        for index, handle in enumerate(self.handles):
            if handle is value:
                return index
        return list(self._input_paths).index(value.id) if value.id in self._input_paths else None

    def node(self, index: int) -> int:
        """The node of a graph input."""
        return list(self._input_paths)[index]

    def example(self, value: TensorValue) -> torch.Tensor | None:
        """The tensor seen while tracing, of an argument or captured tensor."""
        index = self.input_index(value)
        return None if index is None else list(self.examples.values())[index]

    def global_path(self, function: Function, name: str) -> AccessPath:
        """Where a global name of ``function`` is found; one path for all functions of the fused function's module."""
        assert function.function is not None
        return (
            AccessPath("global", name) if function.function.__globals__ is self.module else function.global_path(name)
        )

    def argument(self, value: Any, path: AccessPath) -> Any:
        """A value given to the fused function itself: numbers stay unknown until the structure depends on them."""
        if type(value) in (int, float):
            return self.number(value, path)
        return self.wrap(value, path)

    def wrap(self, value: Any, path: AccessPath) -> Any:
        """A value from outside as a value of the trace, guarded.

        Raises:
            UnsupportedArgument: a NumPy value, a sparse or complex tensor.
        """
        if isinstance(value, torch.Tensor):
            return self.tensor(value, path)
        if isinstance(value, type):
            self.classes.setdefault(value, path)
        if isinstance(value, (*_IDENTICAL, enum.Enum, type)):
            self.guard(path, "is", value, f"{path} is {_show(value)}")
            return value
        if type(value) in _EQUAL:
            self.guard(path, "equal", value, f"{path} == {value!r}")
            return value
        if isinstance(value, types.FunctionType) and not is_torch(value):
            self.guard(path, "code", value.__code__, f"{path} has the text it had")
            return self._keep(path, Function(value, path))
        if isinstance(value, types.ModuleType) and not is_trusted(value.__name__):
            self.guard(path, "is", value, f"{path} is {_show(value)}")
            return self._keep(path, Captured(value, path))
        if isinstance(value, (types.FunctionType, types.ModuleType, _BUILTIN_CALLABLES)) and not _is_bound(value):
            self.guard(path, "is", value, f"{path} is {_show(value)}")
            return value
        if type(value).__module__ == "numpy":
            raise UnsupportedArgument(
                path=f"'{path}'", found=f"a numpy {type(value).__name__}", hint=_numpy_hint(value)
            )
        if is_torch(value) and callable(value) and not isinstance(value, torch.nn.Module):
            self.guard(path, "is", value, f"{path} is {_show(value)}")
            return value
        self.guard(path, "type", type(value), f"type({path}) is {type(value).__name__}")
        return self._keep(path, Captured(value, path))

    def _keep(self, path: AccessPath, made: Any) -> Any:
        """The same object for the same path, so that ``is`` works."""
        return self._captured.setdefault(path, made)

    def contents(self, captured: Captured) -> Any:
        """A captured list, tuple, dict or set as a container of trace values, guarded element by element."""
        value, path = captured.value, captured.path
        if isinstance(value, dict):
            keys = tuple(value)
            self.guard(path, "keys", keys, f"the keys of {path} are {list(keys)}")
            return {key: self.wrap(item, path.item(key)) for key, item in value.items()}
        if isinstance(value, (set, frozenset)):
            self.guard(path, "equal", value.copy(), f"{path} == {value!r}")
            return value
        self.guard(path, "length", len(value), f"len({path}) == {len(value)}")
        items = [self.wrap(item, path.item(index)) for index, item in enumerate(value)]
        if isinstance(value, tuple):
            return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
        return items

    @staticmethod
    def is_container(value: Any) -> bool:
        """Whether ``contents`` understands a captured value."""
        return isinstance(value, Captured) and isinstance(value.value, _CONTAINERS)


def _is_bound(value: Any) -> bool:
    owner = getattr(value, "__self__", None)
    return owner is not None and not isinstance(owner, (types.ModuleType, type))


def _name(path: AccessPath) -> str:
    """A Python identifier for an input: ``self_weight`` for ``self.weight``."""
    steps = [str(key) for kind, key in path.steps if str(key) not in ("__globals__", "__closure__", "cell_contents")]
    text = "_".join([path.name, *steps]) if path.root == "argument" or len(steps) < 2 else steps[-1]
    text = "".join(c if c.isalnum() or c == "_" else "_" for c in text)
    return text if text and not text[0].isdigit() else f"v{text}"


def _show(value: Any) -> str:
    return str(value) if isinstance(value, _IDENTICAL) else describe_python(value)


def _numpy_hint(value: Any) -> str:
    return "torch.from_numpy(...)" if getattr(value, "ndim", 0) else "float(...) or int(...)"
