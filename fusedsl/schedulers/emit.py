# SPDX-License-Identifier: Apache-2.0
"""Writes what stands inside the loops of a kernel: offsets, loads, elementwise lines and stores.

The schedulers decide the loop structure and call an :class:`Emitter` for what stands inside. A value in the text is a
register tile of ``batch x vector`` elements (see :class:`TileShape`); values that do not vary along one of the two tile
axes are smaller tiles and are widened where they meet larger ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

import attrs
import torch

from fusedsl.graph.graph import Node
from fusedsl.graph.ops import OPS, Kind
from fusedsl.graph.types import compute_dtype
from fusedsl.schedulers.approximations import approximate_text
from fusedsl.schedulers.edge import Edge
from fusedsl.schedulers.numbers import numbered_text
from fusedsl.schedulers.space import IterationSpace
from fusedsl.schedulers.text import KernelText, dtype_marker


@attrs.frozen
class TileShape:
    """How a thread's tile lies in the iteration space.

    Element ``b * vector + k`` of a tile is ``k`` further along ``vector_axis`` and ``b * step`` further along
    ``batch_axis`` than the thread's origin. When both are one axis, ``step`` counts elements of that axis. With
    ``edge`` the tile has one element more, which stands elsewhere on that axis (see `Edge`).
    """

    batch: int
    vector: int
    batch_axis: int
    vector_axis: int
    step: int
    edge: bool = False

    @property
    def one_axis(self) -> bool:
        return self.batch_axis == self.vector_axis

    @property
    def numel(self) -> int:
        return self.batch * self.vector + self.edge


@attrs.frozen
class Variable:
    """A tile in the text: its name and whether it varies along the tile's batch and vector axes.

    ``edge`` is the name of its last element, if that is still apart (16-bit elements as they were loaded).
    """

    text: str
    batch: bool = False
    vector: bool = False
    edge: str | None = None


class Emitter(KernelText):
    """Text of one kernel over an iteration space: what stands inside the loops.

    A scheduler sets ``index`` (text of the thread's index on every axis), ``limit`` (text of how much is left along the
    batch axis from there; None: nothing is masked), ``mask`` (the boolean tile of that, once it is written),
    ``shift`` (an axis whose index is another text and a constant beyond: offsets keep the two apart, so that machine
    code can), ``edge`` (where the last element of a tile with an edge is), ``reader`` (text that reads an input which
    is not loaded from global memory) and ``after`` (a reduction's result: 16-bit inputs that were loaded before are
    converted anew once it is known, so that they take half the registers until then). ``streaming`` asks for cache
    hints on what is read or written once; rows do better without (1 to 4 % on an H200).
    """

    def __init__(self, space: IterationSpace, tile: TileShape, name: str, header: Iterable[str]) -> None:
        super().__init__(space.problem.graph, name, header)
        self.space = space
        self.problem = space.problem
        self.tile = tile
        self.index: dict[int, str] = {}
        self.limit: str | None = "limit"
        self.mask: str | None = None
        self.edge: Edge | None = None
        self.shift: tuple[int, str, int] | None = None
        self.streaming = False
        self.clusters_combined = 0
        self.reader: dict[int, Callable[[], str]] = {}
        self.after: str | None = None
        self._converted: set[int] = set()
        self._scopes: list[dict[int, Variable]] = [{}]
        self._offset_scopes: list[dict[object, str]] = [{}]
        self._raw: list[dict[int, Variable]] = [{}]

    @contextlib.contextmanager
    def block(self, head: str | None = None) -> Iterator[None]:
        """An indented block under ``head``; values computed inside are forgotten after it."""
        self._scopes.append({})
        self._offset_scopes.append({})
        self._raw.append({})
        saved_mask = self.mask
        with super().block(head):
            yield
        self.mask = saved_mask
        self._scopes.pop()
        self._offset_scopes.pop()
        self._raw.pop()

    # addresses -----------------------------------------------------------------------------------------------------

    def locate(self, axes: tuple[int, ...], linear: str) -> None:
        """Split a linear index into one index an axis (``linear`` itself if there is one axis)."""
        if len(axes) == 1:
            self.index[axes[0]] = linear
            return
        rest = linear
        for axis in reversed(axes[1:]):
            self.line(f"i{axis} = umod({rest}, {self.extent(axis)})")
            self.line(f"rest{axis} = udiv({rest}, {self.extent(axis)})")
            rest = f"rest{axis}"
            self.index[axis] = f"i{axis}"
        self.index[axes[0]] = rest

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

    def offset(self, node_id: int) -> str:
        """Text of the tensor's element offset at the thread's origin: a variable, and a constant beyond it."""
        if self.shift is None or not self.space.strides[node_id][self.shift[0]]:
            return self._offset(node_id)
        axis, origin, beyond = self.shift
        index, self.index[axis] = self.index[axis], origin
        found = self._offset(node_id)
        self.index[axis] = index
        stride = self.stride(node_id, axis)
        return found + (f" + {beyond}" + (f" * {stride}" if stride != "1" else "") if beyond else "")

    def _offset(self, node_id: int) -> str:
        terms: list[str] = []
        signature: list[tuple[str, str]] = []
        for axis, stride in enumerate(self.space.strides[node_id]):
            if stride == 0 or axis not in self.index:
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
            return self._assign(
                node, f"full(1, {self.scalar(node.inputs[0], dtype)}, {dtype_marker(dtype)})", Variable("")
            )
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

    def loaded(self, node_id: int, raw: Variable) -> None:
        """An input is in a variable already, in the dtype it has in memory."""
        self._raw[-1][node_id] = raw

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
        edge = None
        if self.edge is not None and (batch or vector):
            edge = self.edge.load(self, node.id, self.fill_text(node.id))
            if compute_dtype(dtype) == dtype:
                text, edge = f"join({text}, {edge})", None
        self.line(f"{name} = {text}")
        if edge is not None:
            text, edge = edge, self.fresh(f"{node.name}_edge")
            self.line(f"{edge} = {text}")
        return Variable(name, batch, vector, edge)

    def _load(self, node: Node) -> Variable:
        raw = next((scope[node.id] for scope in reversed(self._raw) if node.id in scope), None)
        raw = raw or self._load_raw(node)
        compute = compute_dtype(node.tensor.dtype)
        if compute == node.tensor.dtype:
            return raw
        text = f"cast({raw.text}, {dtype_marker(compute)})"
        if self.after is not None and compute == torch.float32 and node.id in self._converted:
            text = f"recast({raw.text}, float32, {self.after})"
        self._converted.add(node.id)
        if raw.edge is not None:
            text = f"join({text}, cast({raw.edge}, {dtype_marker(compute)}))"
        return self._assign(node, text, attrs.evolve(raw, edge=None))

    def fill_text(self, node_id: int) -> str:
        """What stands where a masked load reads nothing."""
        return "False" if self.graph[node_id].tensor.dtype == torch.bool else "0"

    def load_text(self, node_id: int, pointer: str, at: str, batch: bool, vector: bool) -> str:
        """The load of an input's tile at offset ``at``."""
        tile = self.tile
        fill = self.fill_text(node_id)
        full_size = self.streaming and all(self.space.strides[node_id])
        suffix = "_stream" if full_size else ""
        if self.edge is not None and node_id in self.edge.across:
            suffix = "_across"
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
            return self._assign(node, f"cast(cast({text}, {dtype_marker(target)}), float32)", variable)
        if compute_dtype(source) == compute_dtype(target):
            return variable
        return self._assign(node, f"cast({text}, {dtype_marker(compute_dtype(target))})", variable)

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

    def tile_of(self, node_id: int, count: str) -> str:
        """Text of a value as a whole tile, of ``count`` elements."""
        variable = self.value(node_id)
        text = self.widen(variable, True, True)
        return text if variable.batch or variable.vector else f"repeat({text}, {count})"

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
            text = f"cast(cast({text}, {dtype_marker(node.tensor.dtype)}), float32)"
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
        narrow = f"cast({{}}, {dtype_marker(target)})" if compute_dtype(target) != target else "{}"
        if self.edge is not None and (batch or vector):
            chunks = self.constant("EDGE", tile.numel - 1)
            last = text
            if variable.batch or variable.vector:
                text, last = f"take({text}, 0, {chunks})", f"take({text}, {chunks}, 1)"
            self.edge.store(self, node_id, narrow.format(last))
        text = narrow.format(text)
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
