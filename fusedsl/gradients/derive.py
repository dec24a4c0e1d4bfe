# SPDX-License-Identifier: Apache-2.0
"""``derive``: a graph becomes a forward graph that saves what gradients need, and a backward graph (reverse mode)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fusedsl.gradients.activity import active_nodes
from fusedsl.gradients.backward import Backward, ForwardInput, ForwardOutput, IncomingGradient, Source
from fusedsl.gradients.partition import Choice, Partition, is_exact, stored_bytes, stored_values
from fusedsl.gradients.reverse import Reverse, incoming
from fusedsl.gradients.shifts import free_shifts
from fusedsl.graph.builder import Builder
from fusedsl.graph.graph import Graph, Node
from fusedsl.graph.ops import OPS, Kind
from fusedsl.graph.types import Symbol, TensorType, compute_dtype


def derive(graph: Graph, wanted: Iterable[int], available: Iterable[Source] | None = None) -> Backward:
    """Differentiate a graph.

    Args:
        graph: any graph; a backward graph too (second derivatives).
        wanted: node ids of the floating inputs that need a gradient.
        available: the inputs and outputs of ``graph`` that may be read, and no other value may be saved; None: the
            cheapest choice is made.

    Returns:
        Forward and backward graph, and what connects them. The arithmetic of the backward graph is in the compute
        dtype; only its results are rounded.

    Raises:
        NotDifferentiable: an op between a wanted input and an output has no derivative.
        SecondDerivative: ``graph`` is itself a gradient that has no right derivative, or ``available`` is too little.
    """
    return _Derivation(graph, tuple(wanted), None if available is None else frozenset(available)).run()


class _Derivation:
    """One differentiation; the builder holds the graph's nodes, the incoming gradients, then what the sweep adds."""

    def __init__(self, graph: Graph, wanted: tuple[int, ...], available: frozenset[Source] | None) -> None:
        assert all(i in graph.inputs for i in wanted), "wanted ids are inputs of the graph"
        assert all(graph[i].tensor.dtype.is_floating_point for i in wanted), "wanted inputs are floating"
        self.graph = _shared(graph)
        self.available = available
        self.wanted = tuple(self.graph.inputs[graph.inputs.index(i)] for i in wanted)
        self.active = active_nodes(self.graph, self.wanted)
        self.builder = Builder(f"{graph.name}_backward")
        for node in self.graph:
            made = _copy(self.builder, node, node.inputs)
            assert made == node.id, "the nodes of the function keep their ids"
        self.differentiable = tuple(i in self.active for i in self.graph.outputs)

    def run(self) -> Backward:
        sweep = Reverse(self.builder, self.graph, self.active, free_shifts(self.graph))
        incoming_ids: dict[int, int] = {}
        for index, node_id in enumerate(self.graph.outputs):
            if self.differentiable[index]:
                node = self.graph[node_id]
                name = "grad_output" if node.name.startswith("_") else f"grad_{node.name}"
                seed = incoming(self.builder, name, node.tensor, index)
                incoming_ids[seed.id] = index
                sweep.seed(node_id, seed)
        gradients = {i: value.id for i, value in sweep.run(self.wanted).items()}
        connected = self._connected()
        results = tuple(gradients[i] for i in self.wanted if i in connected)
        late = self._late(incoming_ids)
        stored = stored_values(self.graph)
        partition = Partition(self.builder.nodes, len(self.graph.nodes), stored, late, self._available(stored))
        kept = partition.kept(results)
        assembly = _Assembly(self.graph, self.builder.nodes, kept, incoming_ids, results)
        forward = assembly.forward()
        assert self.available is None or len(forward.outputs) == len(self.graph.outputs), "nothing more is saved"
        backward = assembly.backward(self.builder.name, [self.graph[i].name for i in self.wanted if i in connected])
        places = iter(range(len(results)))
        return Backward(
            forward,
            backward,
            len(self.graph.outputs),
            tuple(self.graph.inputs.index(i) for i in self.wanted),
            self.differentiable,
            tuple(assembly.sources),
            tuple(assembly.scalars),
            tuple(next(places) if i in connected else None for i in self.wanted),
            assembly.choices(partition),
        )

    def _available(self, stored: Mapping[int, int]) -> frozenset[int] | None:
        """The nodes whose values the available sources hold."""
        if self.available is None:
            return None
        outputs = {self.graph.outputs[s.index] for s in self.available if isinstance(s, ForwardOutput)}
        inputs = {self.graph.inputs[s.index] for s in self.available if isinstance(s, ForwardInput)}
        return frozenset(inputs | {node_id for node_id, output in stored.items() if output in outputs})

    def _connected(self) -> set[int]:
        """Nodes that an output with a gradient depends on through active nodes."""
        found: set[int] = set()
        stack = [i for i in self.graph.outputs if i in self.active]
        while stack:
            node_id = stack.pop()
            if node_id not in found:
                found.add(node_id)
                stack += [i for i in self.graph[node_id].inputs if i in self.active]
        return found

    def _late(self, incoming_ids: Iterable[int]) -> frozenset[int]:
        """What only the backward graph computes: what reads incoming gradients, new reductions, new eager calls."""
        found = set(incoming_ids)
        for node in self.builder.nodes[len(self.graph.nodes) :]:
            if OPS[node.op].kind in (Kind.REDUCTION, Kind.OPAQUE) or any(i in found for i in node.inputs):
                found.add(node.id)
        return frozenset(found)


class _Assembly:
    """Builds the two graphs from the common list of nodes and the set of values that cross over."""

    def __init__(
        self,
        graph: Graph,
        nodes: Sequence[Node],
        kept: frozenset[int],
        incoming_ids: dict[int, int],
        results: tuple[int, ...],
    ) -> None:
        self.graph, self.nodes, self.kept = graph, list(nodes), kept
        self.incoming_ids, self.results = incoming_ids, results
        self.stored = stored_values(graph)
        self.needed = self._needed()
        self.shapes = self._shape_carriers()
        self.kept |= {i for i in self.shapes if i not in graph.inputs}
        self.outputs: list[int] = []  # nodes whose values the forward graph returns, results first
        self.sources: list[Source] = []
        self.scalars: list[int] = []
        self.again: list[int] = []  # nodes of the function that the backward graph computes again

    # forward ---------------------------------------------------------------------------------------------------------

    def forward(self) -> Graph:
        """The function with the kept values as further outputs."""
        builder = Builder(self.graph.name)
        saved = [i for i in sorted(self.kept) if not self._is_free(i)]
        needed = set(self._above([*self.graph.outputs, *saved]))
        made: dict[int, int] = {}
        for node in self.nodes:
            if node.id in needed or node.id in self.graph.inputs or node.id in self.graph.scalars:
                made[node.id] = _copy(builder, node, [made[i] for i in node.inputs])
        results = [made[i] for i in self.graph.outputs]
        for node_id in saved:
            results.append(self._widened(builder, self.nodes[node_id], made[node_id]))
        self.outputs = [*self.graph.outputs, *saved]
        return builder.finish(results)

    def _is_free(self, node_id: int) -> bool:
        node = self.nodes[node_id]
        return node.op == "input" or node_id in self.stored

    def _widened(self, builder: Builder, node: Node, made: int) -> int:
        """The value as it is saved: a 16-bit value that was not rounded yet is saved in float32."""
        if is_exact(self.nodes, node):
            return made
        return builder.add("cast", (made,), _stored_type(self.nodes, node), name=f"{node.name}_saved", explicit=False)

    def _above(self, roots: Iterable[int]) -> set[int]:
        found: set[int] = set()
        stack = list(roots)
        while stack:
            node_id = stack.pop()
            if node_id not in found:
                found.add(node_id)
                stack += self.nodes[node_id].inputs
        return found

    # backward --------------------------------------------------------------------------------------------------------

    def backward(self, name: str, wanted: Sequence[str]) -> Graph:
        """The graph of the gradients of the inputs named ``wanted``."""
        builder = Builder(name)
        made: dict[int, int] = {}
        self._add_inputs(builder, made)
        self._add_scalars(builder, made)
        for node_id in sorted(self.needed):
            if node_id not in made:
                made[node_id] = self._compute(builder, self.nodes[node_id], made)
        for input_name, node_id in zip(wanted, self.results, strict=True):
            builder.rename(made[node_id], f"grad_{input_name}")
        return builder.finish(made[i] for i in self.results)

    def _needed(self) -> set[int]:
        """Nodes of the backward graph: kept values and incoming gradients are its inputs; extents need no tensor."""
        found: set[int] = set()
        stack = list(self.results)
        while stack:
            node_id = stack.pop()
            if node_id in found:
                continue
            found.add(node_id)
            node = self.nodes[node_id]
            if node_id not in self.kept and node.op not in ("input", "size"):
                stack += node.inputs
        return found

    def _shape_carriers(self) -> list[int]:
        """Values with the extents that no other input of the backward graph has."""
        arguments = [i for i in self.needed if i in self.kept or i in self.incoming_ids]
        known = {e for i in arguments for e in self.nodes[i].tensor.shape}
        found = []
        for extent in dict.fromkeys(e for i in sorted(self.needed) for e in self._extents(i) if isinstance(e, Symbol)):
            if extent not in known:
                eager = (n.id for n in self.graph if n.op in ("opaque", "item"))
                holders = (*self.graph.inputs, *eager)
                carrier = next(i for i in holders if extent in self.nodes[i].tensor.shape)
                found.append(carrier)
                known.update(self.nodes[carrier].tensor.shape)
        return found

    def _add_inputs(self, builder: Builder, made: dict[int, int]) -> None:
        """Incoming gradients, kept values, and tensors of which only the shape is read."""
        for node_id in sorted(self.needed & set(self.incoming_ids)):
            made[node_id] = self._argument(builder, node_id, IncomingGradient(self.incoming_ids[node_id]))
        for node_id in sorted(self.needed & self.kept):
            made[node_id] = self._argument(builder, node_id, self._source(node_id))
        for node_id in self.shapes:
            self._argument(builder, node_id, self._source(node_id, shape_only=True))

    def _source(self, node_id: int, shape_only: bool = False) -> Source:
        if node_id in self.graph.inputs:
            return ForwardInput(self.graph.inputs.index(node_id), shape_only)
        return ForwardOutput(self.outputs.index(self.stored.get(node_id, node_id)))

    def _extents(self, node_id: int) -> Sequence[object]:
        node = self.nodes[node_id]
        if node.op == "size":
            return (self.nodes[node.inputs[0]].tensor.shape[node.attribute("dim")],)
        return node.tensor.shape if node.is_tensor else ()

    def _argument(self, builder: Builder, node_id: int, source: Source) -> int:
        node = self.nodes[node_id]
        type_ = _stored_type(self.nodes, node) if isinstance(source, ForwardOutput) else node.tensor
        index = len(self.sources)
        self.sources.append(source)
        builder.span = node.span
        argument = builder.add("input", (), type_, share=False, name=node.name, index=index)
        return argument if type_ == node.tensor else builder.add("cast", (argument,), node.tensor, explicit=False)

    def _add_scalars(self, builder: Builder, made: dict[int, int]) -> None:
        for node_id in sorted(self.needed):
            node = self.nodes[node_id]
            if node.op == "scalar_input":
                index = len(self.scalars)
                made[node_id] = builder.add("scalar_input", (), node.type, share=False, name=node.name, index=index)
                self.scalars.append(self.graph.scalars.index(node_id))

    def _compute(self, builder: Builder, node: Node, made: dict[int, int]) -> int:
        if node.op == "size":
            return self._size(builder, node)
        if node.op == "cast" and not node.attribute("explicit"):
            # A saved float32 that was narrowed to stand for a 16-bit value is read as it is.
            source = builder.nodes[made[node.inputs[0]]]
            if source.op == "cast" and not source.attribute("explicit"):
                before = builder.nodes[source.inputs[0]]
                if before.op == "input" and before.tensor.dtype is node.tensor.dtype:
                    return before.id
        if node.id < len(self.graph.nodes) and node.is_tensor:
            self.again.append(node.id)
        return _copy(builder, node, [made[i] for i in node.inputs])

    def _size(self, builder: Builder, node: Node) -> int:
        """The extent, read from a tensor that the backward graph has."""
        (extent,) = self._extents(node.id)
        for argument in builder.nodes:
            if argument.op == "input" and extent in argument.tensor.shape:
                dim = argument.tensor.shape.index(extent)
                return builder.add("size", (argument.id,), node.type, dim=dim)
        raise AssertionError(f"no argument has the extent {extent}")

    # the record ------------------------------------------------------------------------------------------------------

    def choices(self, partition: Partition) -> tuple[Choice, ...]:
        """What became of every value that crosses over or is computed again."""
        found = []
        for node_id in sorted(self.kept):
            node = self.nodes[node_id]
            size = stored_bytes(self.nodes, node)
            if node.op == "input":
                found.append(Choice(node.name, "input", size, f"the backward reads the argument, {size} bytes"))
            elif self._is_free(node_id):
                found.append(Choice(node.name, "output", size, f"a result that is stored anyway, {size} bytes read"))
            else:
                cost = partition.cost(node)
                reason = f"{cost} bytes written and read; the cheapest cut that repeats no reduction"
                found.append(Choice(node.name, "saved", cost, reason))
        for node_id in self.again:
            node = self.nodes[node_id]
            sources = ", ".join(self.nodes[i].name for i in node.inputs if self.nodes[i].is_tensor)
            reason = f"{node.op} of {sources or 'numbers'}, instead of {partition.cost(node)} bytes"
            found.append(Choice(node.name, "recomputed", 0, reason))
        return tuple(found)


def _stored_type(nodes: list[Node], node: Node) -> TensorType:
    dtype = node.tensor.dtype if is_exact(nodes, node) else compute_dtype(node.tensor.dtype)
    return TensorType(dtype, node.tensor.shape)


def _copy(builder: Builder, node: Node, inputs: Iterable[int]) -> int:
    """``node`` in another graph."""
    builder.span = node.span
    share = node.op not in ("input", "scalar_input", "opaque")
    return builder.add(node.op, inputs, node.type, share=share, name=node.name, **dict(node.attributes))


def _shared(graph: Graph) -> Graph:
    """The graph without dead nodes and without two nodes that are the same."""
    builder = Builder(graph.name)
    made: list[int] = []
    for node in graph:
        made.append(_copy(builder, node, [made[i] for i in node.inputs]))
    return builder.finish(made[i] for i in graph.outputs)
