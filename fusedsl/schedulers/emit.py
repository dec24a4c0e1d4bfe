# SPDX-License-Identifier: Apache-2.0
"""Writes kernel text for a segment: parameters, offsets, loads, elementwise lines and stores.

The schedulers decide the loop structure and call an :class:`Emitter` for what stands inside. A value in the text is a
register tile of ``batch x vector`` elements (see :class:`TileShape`); values that do not vary along one of the two tile
axes are smaller tiles and are widened where they meet larger ones.
"""

from __future__ import annotations

import contextlib
import keyword
import math
import re
from collections.abc import Callable, Iterable, Iterator

import attrs
import torch

from fusedsl.graph.graph import Graph, Node
from fusedsl.graph.ops import OPS, Kind
from fusedsl.graph.types import compute_dtype, dtype_name
from fusedsl.numba_cuda.kernel import KernelSource
from fusedsl.schedulers.approximations import approximate_text
from fusedsl.schedulers.base import (
    Argument,
    IntArgument,
    Launch,
    ScalarArgument,
    TensorArgument,
    WorkspaceArgument,
)
from fusedsl.schedulers.numbers import numbered_text
from fusedsl.schedulers.space import IterationSpace


@attrs.frozen
class TileShape:
    """How a thread's tile lies in the iteration space.

    Element ``b * vector + k`` of a tile is ``k`` further along ``vector_axis`` and ``b * step`` further along
    ``batch_axis`` than the thread's origin. When both are one axis, ``step`` counts elements of that axis.
    """

    batch: int
    vector: int
    batch_axis: int
    vector_axis: int
    step: int

    @property
    def one_axis(self) -> bool:
        return self.batch_axis == self.vector_axis

    @property
    def numel(self) -> int:
        return self.batch * self.vector


@attrs.frozen
class Variable:
    """A tile in the text: its name and whether it varies along the tile's batch and vector axes."""

    text: str
    batch: bool = False
    vector: bool = False


#: Names of the kernel language that a user's variable must not shadow, besides Python's keywords. The kernel language
#: itself is looked up in the text's globals, so any local of the same name would hide it.
_RESERVED = frozenset(
    [
        "boolean",
        "int8",
        "int16",
        "int32",
        "int64",
        "uint8",
        "uint16",
        "uint32",
        "uint64",
        "float16",
        "bfloat16",
        "float32",
        "float64",
        "range",
        "INF",
        "NAN",
        "thread_x",
        "thread_y",
        "thread_z",
        "block_x",
        "block_y",
        "block_z",
        "grid_x",
        "grid_y",
        "grid_z",
        "lane",
        "warp",
        "udiv",
        "umod",
        "udiv32",
        "umod32",
        "load",
        "load_stream",
        "store",
        "store_stream",
        "load_strided",
        "load_strided_stream",
        "store_strided",
        "store_strided_stream",
        "chunk_mask",
        "repeat",
        "spread",
        "gather",
        "scatter",
        "iota",
        "full",
        "cast",
        "bitcast",
        "where",
        "maximum",
        "minimum",
        "fmax",
        "fmin",
        "abs_",
        "sign",
        "floor",
        "ceil",
        "trunc",
        "round_",
        "sqrt",
        "rsqrt",
        "reciprocal",
        "exp",
        "exp2",
        "expm1",
        "log",
        "log2",
        "log10",
        "log1p",
        "sin",
        "cos",
        "tan",
        "asin",
        "acos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "acosh",
        "atanh",
        "erf",
        "erfc",
        "erfinv",
        "lgamma",
        "digamma",
        "pow_",
        "fmod",
        "remainder",
        "atan2",
        "hypot",
        "copysign",
        "nextafter",
        "isnan",
        "isinf",
        "isfinite",
        "signbit",
        "fma",
        "barrier",
        "shared",
        "dynamic_shared",
        "shared_load",
        "shared_store",
        "warp_barrier",
        "fence_gpu",
        "atomic_add",
        "row",
        "col",
        "rows",
        "limit",
        "valid",
        "live",
        "begin",
        "end",
        "start",
        "share",
        "parts",
        "part",
        "kept",
        "place",
        "slot",
        "line",
        "block",
        "outer",
        "stop",
        "column_blocks",
        "min",
        "max",
        "random_uniform",
    ]
)
_RESERVED_PREFIXES = (
    "async_",
    "bulk_",
    "cluster_",
    "mbarrier",
    "remote_",
    "fold_",
    "tile_",
    "warp_",
    "shuffle_",
    "fast_",
)


class Emitter:
    """Text of one kernel under construction.

    ``streaming`` asks for cache hints on what is read or written once; rows do better without (1 to 4 % on an H200).
    """

    def __init__(self, space: IterationSpace, tile: TileShape, name: str, header: Iterable[str]) -> None:
        self.space = space
        self.problem = space.problem
        self.graph = space.problem.graph
        self.tile = tile
        self.name = name
        self.header = list(header)
        self.constants: dict[str, str] = {}
        self.lines: list[str] = []
        self.index: dict[int, str] = {}
        self.limit: str | None = "limit"
        self.mask: str | None = None
        self.streaming = False
        self.constant_prefix = ""
        self.convert = "cast"
        self.clusters_combined = 0
        self.reader: dict[int, Callable[[], str]] = {}
        self._indent = 1
        self._scopes: list[dict[int, Variable]] = [{}]
        self._offset_scopes: list[dict[object, str]] = [{}]
        self._raw: list[dict[int, Variable]] = [{}]
        self._parameters: dict[str, tuple[str, Argument]] = {}
        self._names: set[str] = set()
        self._line: tuple[str, int] | None = None

    # text ----------------------------------------------------------------------------------------------------------

    def line(self, text: str = "") -> None:
        """Append one line at the current indentation."""
        self.lines.append("    " * self._indent + text if text else "")

    def comment(self, node: Node) -> None:
        """Quote the user's line above the code it became, once per run of code from that line."""
        span = node.span
        if span is None or (span.file, span.line) == self._line:
            return
        self._line = (span.file, span.line)
        self.line(f"# {span.file.rsplit('/', 1)[-1]}:{span.line}  {span.text.strip()}")

    @contextlib.contextmanager
    def block(self, head: str | None = None) -> Iterator[None]:
        """An indented block under ``head``; values computed inside are forgotten after it."""
        if head is not None:
            self.line(head)
            self._indent += 1
        self._scopes.append({})
        self._offset_scopes.append({})
        self._raw.append({})
        saved_mask = self.mask
        yield
        self.mask = saved_mask
        self._scopes.pop()
        self._offset_scopes.pop()
        self._raw.pop()
        if head is not None:
            self._indent -= 1
            if head.startswith("for"):
                self._line = None

    def constant(self, name: str, value: int | float) -> str:
        """A module-level constant of the text."""
        name = self.constant_prefix + name
        text = repr(value) if not isinstance(value, float) or math.isfinite(value) else f'float("{value}")'
        assert self.constants.setdefault(name, text) == text, f"constant {name} has two values"
        return name

    def fresh(self, name: str) -> str:
        """A local name close to ``name`` that hides nothing and is not taken."""
        base = re.sub(r"\W", "_", name).strip("_") or "value"
        if base[0].isdigit():
            base = f"v{base}"
        if keyword.iskeyword(base) or base in _RESERVED or base.startswith(_RESERVED_PREFIXES):
            base += "_"
        if re.fullmatch(r"[EDi][\d_]+|rest\d+|[A-Z_]+\d*", base):
            base = base.lower() + "_"
        candidate, count = base, 1
        while candidate in self._names:
            candidate, count = f"{base}_{count}", count + 1
        self._names.add(candidate)
        return candidate

    # parameters ----------------------------------------------------------------------------------------------------

    def pointer(self, node_id: int) -> str:
        """The pointer parameter of an input or output."""
        key = f"tensor {node_id}"
        if key not in self._parameters:
            node = self.graph[node_id]
            name = self.fresh(f"{node.name.strip('_')}_ptr")
            self._parameters[key] = (name, TensorArgument(node_id))
        return self._parameters[key][0]

    def workspace(self, index: int, dtype: torch.dtype) -> str:
        """The pointer parameter of a temporary buffer."""
        key = f"workspace {index} {dtype_name(dtype)}"
        if key not in self._parameters:
            self._parameters[key] = (self.fresh(f"workspace{index}_ptr"), WorkspaceArgument(index))
        return self._parameters[key][0]

    def integer(self, name: str, value: int) -> str:
        """An int64 parameter: an extent or stride."""
        known = self._parameters.setdefault(f"int {name}", (name, IntArgument(value)))
        assert known[1] == IntArgument(value), f"parameter {name} has two values"
        self._names.add(name)
        return name

    def extent(self, axis: int) -> str:
        """The parameter that holds the extent of an axis."""
        return self.integer(f"E{axis}", self.space.axes[axis].extent)

    def stride(self, node_id: int, axis: int) -> str:
        """Text of a tensor's stride on an axis: 1, extents or their product if it is packed, or a parameter."""
        stride = self.space.strides[node_id][axis]
        inner = self._packed_inside(node_id, axis)
        if inner is None:
            last = axis == len(self.space.axes) - 1
            return "1" if last and stride == 1 else self.integer(f"{self.pointer(node_id)[:-4]}_s{axis}", stride)
        if not inner:
            return "1"
        if len(inner) == 1:
            return self.extent(inner[0])
        return self.integer("D" + "_".join(map(str, inner)), self.space.size(inner))

    def _packed_inside(self, node_id: int, axis: int) -> tuple[int, ...] | None:
        """The axes inside ``axis`` that the tensor varies on, if it is packed over all axes it varies on; else None."""
        strides = self.space.strides[node_id]
        varied = [a for a, s in enumerate(strides) if s]
        expected = 1
        for a in reversed(varied):
            if strides[a] != expected:
                return None
            expected *= self.space.axes[a].extent
        return tuple(a for a in varied if a > axis)

    def scalar(self, node_id: int, dtype: torch.dtype) -> str:
        """Text of a host scalar used in arithmetic of ``dtype``: a literal or a parameter."""
        node = self.graph[node_id]
        if node.op == "constant":
            return self._literal(node.attribute("value"))
        kind = scalar_parameter(dtype)
        key = f"scalar {node_id} {kind}"
        if key not in self._parameters:
            self._parameters[key] = (self.fresh(node.name), ScalarArgument(node_id, kind))
        return self._parameters[key][0]

    def _literal(self, value: bool | int | float) -> str:
        if isinstance(value, float) and not math.isfinite(value):
            if math.isnan(value):
                return self.constant("NAN", float("nan"))
            text = self.constant("INF", float("inf"))
            return text if value > 0 else f"(-{text})"
        return repr(value) if not (isinstance(value, (int, float)) and value < 0) else f"({value!r})"

    # addresses -----------------------------------------------------------------------------------------------------

    def offset(self, node_id: int, skip: tuple[int, ...] = ()) -> str:
        """A variable with the tensor's element offset at the thread's origin; axes in ``skip`` do not count."""
        terms: list[str] = []
        signature: list[tuple[str, str]] = []
        for axis, stride in enumerate(self.space.strides[node_id]):
            if stride == 0 or axis in skip or axis not in self.index:
                continue
            text, index = self.stride(node_id, axis), self.index[axis]
            signature.append((index, text))
            terms.append(index if text == "1" else f"{index} * {text}")
        if not terms:
            return "0"
        key = tuple(signature)
        for scope in reversed(self._offset_scopes):
            if key in scope:
                return scope[key]
        if len(terms) == 1 and "*" not in terms[0]:
            return terms[0]
        name = self.fresh(f"{self.pointer(node_id)[:-4]}_at" if not all(self.space.strides[node_id]) else "at")
        self.line(f"{name} = {' + '.join(terms)}")
        self._offset_scopes[-1][key] = name
        return name

    def forget_offsets(self) -> None:
        """Offsets computed so far in this scope no longer hold (an index variable changed)."""
        self._offset_scopes[-1].clear()

    # values --------------------------------------------------------------------------------------------------------

    def define(self, node_id: int, variable: Variable) -> None:
        """Record the variable that holds a node from here on (in the current scope)."""
        self._scopes[-1][node_id] = variable

    def known(self, node_id: int) -> Variable | None:
        """The variable that holds a node, if it has one."""
        for scope in reversed(self._scopes):
            if node_id in scope:
                return scope[node_id]
        return None

    def value(self, node_id: int) -> Variable:
        """The variable that holds a node, computing it and what it needs first."""
        needed: set[int] = set()
        stack = [node_id]
        while stack:
            current = stack.pop()
            if current in needed or self.known(current) is not None:
                continue
            needed.add(current)
            stack.extend(i for i in self.graph[current].inputs if self.graph[i].is_tensor)
        for current in sorted(needed):
            self._scopes[-1][current] = self._emit(self.graph[current])
        found = self.known(node_id)
        assert found is not None
        return found

    def hoist(self, targets: Iterable[int]) -> None:
        """Compute what the targets need that does not depend on values still to be loaded: before a loop, not in it."""
        needed: set[int] = set()
        stack = list(targets)
        while stack:
            current = stack.pop()
            if current not in needed and self.known(current) is None:
                needed.add(current)
                stack.extend(i for i in self.graph[current].inputs if self.graph[i].is_tensor)
        for current in sorted(needed):
            node = self.graph[current]
            tensors = [i for i in node.inputs if self.graph[i].is_tensor]
            if tensors and all(self.known(i) is not None for i in tensors) and OPS[node.op].kind is not Kind.REDUCTION:
                self._scopes[-1][current] = self._emit(node)

    def forget_tiles(self) -> None:
        """Compute tiles again where they are next needed, from the inputs as they lie in registers; do not keep them.

        Inputs of 16 bits stay packed, two elements a register; converting them again must look different to the
        compiler, or it would keep the first conversion.
        """
        self.convert = "recast"
        for scope in self._scopes:
            for node_id in [i for i, v in scope.items() if v.batch or v.vector]:
                dtype = self.graph[node_id].tensor.dtype
                if self.graph[node_id].op != "input" or compute_dtype(dtype) != dtype:
                    del scope[node_id]

    def varies(self, node_id: int) -> tuple[bool, bool]:
        """Whether an input or output varies along the tile's batch axis and vector axis."""
        strides = self.space.strides[node_id]
        return strides[self.tile.batch_axis] != 0, strides[self.tile.vector_axis] != 0

    def _emit(self, node: Node) -> Variable:
        kind = OPS[node.op].kind
        if kind is Kind.INPUT:
            return self._load(node)
        self.comment(node)
        if kind is Kind.REINDEX:
            return self.value(node.inputs[0])
        if kind is Kind.CAST:
            return self._cast(node)
        if node.op in ("iota", "random"):
            text, batch, vector = numbered_text(self, node)
            return self._assign(node, text, Variable("", batch, vector))
        if kind is Kind.FACTORY:
            dtype = compute_dtype(node.tensor.dtype)
            return self._assign(node, f"full(1, {self.scalar(node.inputs[0], dtype)}, {marker(dtype)})", Variable(""))
        assert kind is Kind.POINTWISE, f"{node.op} cannot stand inside a tile expression"
        return self._pointwise(node)

    def _assign(self, node: Node, text: str, like: Variable) -> Variable:
        name = self.fresh(node.name)
        self.line(f"{name} = {text}")
        return attrs.evolve(like, text=name)

    def prefetch(self, node_id: int) -> None:
        """Load an input now, in the dtype it has in memory; it is converted where it is first used."""
        if self.known(node_id) is None and node_id not in self._raw[-1]:
            self._raw[-1][node_id] = self._load_raw(self.graph[node_id])

    def zero_padded(self, node_id: int) -> bool:
        """True if padding makes the value 0: masked loads give 0, and these ops keep it."""
        node = self.graph[node_id]
        if node.op == "input":
            return self.limit is not None and all(self.varies(node_id))
        if node.op in ("cast", "neg", "abs", "mul", "add", "sub", "clone", "contiguous"):
            return all(self.graph[i].is_tensor and self.zero_padded(i) for i in node.inputs)
        return False

    def _load_raw(self, node: Node) -> Variable:
        batch, vector = self.varies(node.id)
        dtype = node.tensor.dtype
        if node.id in self.reader:
            text = self.reader[node.id]()
        else:
            text = self.load_text(node.id, self.pointer(node.id), self.offset(node.id), batch, vector)
        name = self.fresh(node.name if compute_dtype(dtype) == dtype else f"{node.name}_raw")
        self.line(f"{name} = {text}")
        return Variable(name, batch, vector)

    def _load(self, node: Node) -> Variable:
        raw = next((scope[node.id] for scope in reversed(self._raw) if node.id in scope), None)
        raw = raw or self._load_raw(node)
        compute = compute_dtype(node.tensor.dtype)
        if compute == node.tensor.dtype:
            return raw
        return self._assign(node, f"{self.convert}({raw.text}, {marker(compute)})", raw)

    def load_text(self, node_id: int, pointer: str, at: str, batch: bool, vector: bool) -> str:
        """The load of an input's tile at offset ``at``."""
        tile = self.tile
        fill = "False" if self.graph[node_id].tensor.dtype == torch.bool else "0"
        full_size = self.streaming and all(self.space.strides[node_id])
        suffix = "_stream" if full_size else ""
        vec = self.constant("VECTOR", tile.vector) if vector else "1"
        count = self.constant("BATCH", tile.batch) if batch else "1"
        step = self.constant("STEP", tile.step) if batch else "1"
        element = self.stride_along_vector(node_id) if vector else "1"
        if not batch and not vector:
            return f"load({pointer}, {at}, None, 1, 1, 1, {fill})"
        if element == "1" and (not batch or tile.one_axis):
            return f"load{suffix}({pointer}, {at}, {self.limit}, {count}, {step}, {vec}, {fill})"
        if not batch:
            return f"load_strided({pointer}, {at}, {self.limit}, 1, 1, 0, {vec}, {element}, {fill})"
        stride = self.batch_stride(node_id, element)
        return (
            f"load_strided{suffix}({pointer}, {at}, {self.limit}, {count}, {step}, {stride}, {vec}, {element}, {fill})"
        )

    def stride_along_vector(self, node_id: int) -> str:
        """Text of the element stride inside a chunk: the literal 1 allows a vector access."""
        return self.stride(node_id, self.tile.vector_axis)

    def batch_stride(self, node_id: int, element: str) -> str:
        """Text of the distance between a tensor's chunks."""
        tile = self.tile
        step = self.constant("STEP", tile.step)
        if tile.one_axis:
            return step if element == "1" else f"{step} * {element}"
        along = self.stride(node_id, tile.batch_axis)
        return f"{step} * {along}" if tile.step != 1 else along

    def _cast(self, node: Node) -> Variable:
        source = self.graph[node.inputs[0]].tensor.dtype
        target = node.tensor.dtype
        variable = self.value(node.inputs[0])
        rounds = target != compute_dtype(target) and source != target
        text = variable.text
        if rounds and (node.attribute("explicit") or self.problem.numerics == "eager"):
            if compute_dtype(source) != torch.float32:
                text = f"cast({text}, float32)" if compute_dtype(source) != torch.float64 else text
            return self._assign(node, f"cast(cast({text}, {marker(target)}), float32)", variable)
        if compute_dtype(source) == compute_dtype(target):
            return variable
        return self._assign(node, f"cast({text}, {marker(compute_dtype(target))})", variable)

    def widen(self, variable: Variable, batch: bool, vector: bool) -> str:
        """Text of a variable as a tile that varies along the given tile axes (1-tiles are left as they are)."""
        tile = self.tile
        text = variable.text
        if (variable.batch, variable.vector) in ((batch, vector), (False, False)) or tile.one_axis:
            return text
        if batch and not variable.batch and tile.batch > 1 and tile.vector > 1:
            text = f"repeat({text}, {self.constant('BATCH', tile.batch)})"
        if vector and not variable.vector and tile.vector > 1 and tile.batch > 1:
            text = f"spread({text}, {self.constant('VECTOR', tile.vector)})"
        return text

    def _pointwise(self, node: Node) -> Variable:
        op = OPS[node.op]
        if op.emit == "{0}":
            return self.value(node.inputs[0])
        tensors = [self.value(i) for i in node.inputs if self.graph[i].is_tensor]
        batch = any(v.batch for v in tensors)
        vector = any(v.vector for v in tensors)
        dtypes = [self.graph[i].tensor.dtype for i in node.inputs if self.graph[i].is_tensor]
        operand_dtype = compute_dtype(dtypes[-1])
        texts = []
        for source in node.inputs:
            if self.graph[source].is_tensor:
                variable = self.known(source)
                assert variable is not None
                texts.append(self.widen(variable, batch, vector))
            else:
                texts.append(
                    self.scalar(source, compute_dtype(node.tensor.dtype) if op.result == "same" else operand_dtype)
                )
        divisor = tensors[-1]
        row = (batch or vector) and not (divisor.batch or divisor.vector)
        text = (approximate_text(self.graph, node, divisor_is_row=row) or op.emit).format(*texts)
        if self.problem.numerics == "eager" and node.tensor.dtype != compute_dtype(node.tensor.dtype):
            text = f"cast(cast({text}, {marker(node.tensor.dtype)}), float32)"
        return self._assign(node, text, Variable("", batch, vector))

    def store(self, node_id: int) -> None:
        """Store an output's tile at the thread's origin."""
        node = self.graph[node_id]
        variable = self.value(node_id)
        self.comment(node)
        batch, vector = self.varies(node_id)
        text = self.widen(variable, batch, vector)
        tile = self.tile
        pointer, at = self.pointer(node_id), self.offset(node_id)
        target = node.tensor.dtype
        if compute_dtype(target) != target:
            text = f"cast({text}, {marker(target)})"
        vec = self.constant("VECTOR", tile.vector) if vector else "1"
        count = self.constant("BATCH", tile.batch) if batch else "1"
        step = self.constant("STEP", tile.step) if batch else "1"
        element = self.stride_along_vector(node_id) if vector else "1"
        suffix = "_stream" if self.streaming and all(self.space.strides[node_id]) else ""
        limit = self.limit if batch or vector else "None"
        if element == "1" and (not batch or tile.one_axis):
            self.line(f"store{suffix}({pointer}, {at}, {limit}, {text}, {count}, {step}, {vec})")
        else:
            stride = self.batch_stride(node_id, element) if batch else "0"
            self.line(
                f"store_strided{suffix}({pointer}, {at}, {limit}, {text}, {count}, {step}, {stride}, {vec}, {element})"
            )

    # result --------------------------------------------------------------------------------------------------------

    def source(self, threads: int, min_blocks: int | None = None, max_registers: int | None = None) -> KernelSource:
        """The finished text."""
        names = [name for _, name, _ in self._ordered()]
        head = [f"# {text}" if text else "#" for text in (*self.header, "parameters: " + self._describe())]
        constants = [f"{name} = {text}" for name, text in self.constants.items()]
        body = [*head, *constants, "", "", f"def {self.name}({', '.join(names)}):", *self.lines]
        return KernelSource(self.name, "\n".join(body) + "\n", self._signature(), threads, min_blocks, max_registers)

    def launch(self, source: KernelSource, geometry: object) -> Launch:
        """A launch of the finished text with this emitter's arguments."""
        return Launch(source, geometry, tuple(argument for _, _, argument in self._ordered()))  # type: ignore[arg-type]

    def _ordered(self) -> list[tuple[str, str, Argument]]:
        """(type, name, argument) of every parameter: pointers, extents and strides, scalars."""
        found = [(self._parameter_type(key, a), name, a) for key, (name, a) in self._parameters.items()]
        rank = {TensorArgument: 0, WorkspaceArgument: 1, IntArgument: 2, ScalarArgument: 3}
        return sorted(found, key=lambda entry: rank[type(entry[2])])

    def _signature(self) -> tuple[str, ...]:
        return tuple(kind for kind, _, _ in self._ordered())

    def _parameter_type(self, key: str, argument: Argument) -> str:
        if isinstance(argument, TensorArgument):
            return "*" + dtype_marker(self.graph[argument.node].tensor.dtype)
        if isinstance(argument, WorkspaceArgument):
            return "*" + dtype_marker(getattr(torch, key.rsplit(" ", 1)[1]))
        if isinstance(argument, ScalarArgument):
            return argument.kind
        return "int64"

    def _describe(self) -> str:
        return ", ".join(f"{name}: {kind}" for kind, name, _ in self._ordered())


def kernel_name(graph: Graph, suffix: str) -> str:
    """The name profilers show: the user's function (ASCII letters, digits and underscores only) and the scheduler."""
    return f"{re.sub('[^A-Za-z0-9_]', '_', graph.name)}_{suffix}"


def dtype_marker(dtype: torch.dtype) -> str:
    """The kernel language's name of a torch dtype."""
    return "boolean" if dtype == torch.bool else dtype_name(dtype)


marker = dtype_marker


def scalar_parameter(dtype: torch.dtype) -> str:
    """The kernel parameter type that carries a host scalar into arithmetic of ``dtype``."""
    if dtype == torch.bool:
        return "boolean"
    if dtype == torch.float64:
        return "float64"
    return "float32" if dtype.is_floating_point else "int64"
