# SPDX-License-Identifier: Apache-2.0
"""What the forward graph saves for the backward graph, and what the backward graph computes again.

The choice is a cheapest cut between what is there anyway (the function's inputs) and what the gradients read:

* an input costs its bytes once (the backward reads it);
* an output of the function that is stored without rounding costs its bytes once (it is written anyway);
* any other value costs its bytes twice (written and read), at the width arithmetic has: 4 bytes for a 16-bit float that
  was not rounded yet, so that saving does not add a rounding;
* a reduction, a lookup in a row, or a call run by eager torch (reshapes aside) of the function is never computed again:
  it, or something computed from it, is saved;
* everything else is computed again for nothing, as a memory-bound kernel has time for it.

Of equally cheap cuts one of the function's own values is taken (a saved ``cos(z)`` does not suffice for the second
derivative of ``sin(z)``, z does), of these the one nearest to the gradients, which computes least again. So
``layer_norm`` saves its mean and its reciprocal standard deviation, one number a row each, and computes the normalised
row again from its input. Reductions that only the gradients need are never moved into the forward graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import attrs

from fusedsl.gradients.errors import SecondDerivative
from fusedsl.gradients.flow import INFINITE, FlowNetwork
from fusedsl.gradients.views import is_reshape
from fusedsl.graph.graph import Graph, Node
from fusedsl.graph.ops import OPS, Kind
from fusedsl.graph.types import Symbol, compute_dtype, extent_hint

#: Symbolic extents seen as smaller than this count as this: what is small while tracing may be large later.
SMALLEST_EXTENT = 16

#: What the backward does not compute again by choice.
_NOT_REPEATED = (Kind.REDUCTION, Kind.LOOKUP, Kind.OPAQUE)


@attrs.frozen
class Choice:
    """Why a value is there for the backward graph.

    Attributes:
        name: of the value in the forward graph.
        kind: "input" (an argument, kept), "output" (a result, kept), "saved" (an extra result) or "recomputed".
        bytes: that are moved because of it, at the sizes seen while tracing.
        reason: for people.
    """

    name: str
    kind: str
    bytes: int
    reason: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}: {self.reason}"


def is_exact(nodes: Sequence[Node], node: Node) -> bool:
    """Whether storing the value in its own dtype loses nothing."""
    if compute_dtype(node.tensor.dtype) is node.tensor.dtype or node.op in ("input", "opaque", "item"):
        return True
    if node.op == "cast":
        return bool(node.attribute("explicit"))
    return node.op in ("reindex", "clone", "contiguous") and is_exact(nodes, nodes[node.inputs[0]])


def stored_values(graph: Graph) -> dict[int, int]:
    """Node -> the output that holds its value without rounding: the node itself, or a copy of it."""
    found: dict[int, int] = {}
    for output in graph.outputs:
        node = graph[output]
        while is_exact(graph.nodes, node):
            found.setdefault(node.id, output)
            if node.op not in ("clone", "contiguous"):
                break
            node = graph[node.inputs[0]]
    return found


def stored_bytes(nodes: Sequence[Node], node: Node) -> int:
    """Bytes of a value as it would be saved."""
    dtype = node.tensor.dtype
    size = dtype.itemsize if is_exact(nodes, node) else compute_dtype(dtype).itemsize
    extents = (max(extent_hint(e), SMALLEST_EXTENT) if isinstance(e, Symbol) else e for e in node.tensor.shape)
    return size * math.prod(extents)


@attrs.define(eq=False)
class Partition:
    """The choice for one graph.

    Attributes:
        nodes: forward and backward nodes, in order.
        forward: number of nodes of the function itself, which come first.
        stored: values that results of the function hold (see ``stored_values``).
        late: ids of nodes that depend on an incoming gradient.
        available: the only values the backward may receive, None: any. It then repeats reductions if it must.
    """

    nodes: list[Node]
    forward: int
    stored: Mapping[int, int]
    late: frozenset[int]
    available: frozenset[int] | None = None

    def kept(self, results: Iterable[int]) -> frozenset[int]:
        """The values that the backward graph receives so that it can compute ``results``.

        Raises:
            SecondDerivative: ``available`` values do not suffice.
        """
        needed = self._needed(results)
        if not needed:
            return frozenset()
        above = self._above(needed)
        order = sorted(above)
        place = {node_id: 2 * k for k, node_id in enumerate(order)}
        source, sink = 2 * len(order), 2 * len(order) + 1
        network = FlowNetwork(sink + 1)
        for node_id in order:
            node = self.nodes[node_id]
            network.connect(place[node_id], place[node_id] + 1, 2 * self.cost(node) + (node_id >= self.forward))
            if self._is_start(node):
                network.connect(source, place[node_id], INFINITE)
            for operand in self._operands(node_id):
                network.connect(place[operand] + 1, place[node_id], INFINITE)
            if node_id in needed:
                network.connect(place[node_id] + 1, sink, INFINITE)
        if network.saturate(source, sink) >= INFINITE:
            raise SecondDerivative(
                "what the forward kept does not suffice for this second derivative",
                hint="return the intermediate values too, or call .reference, which is plain PyTorch",
            )
        near = network.reaching(sink)
        return frozenset(self._viewed(i) for i in order if place[i] + 1 in near and place[i] not in near)

    def _viewed(self, node_id: int) -> int:
        """The value that ``node_id`` is a view of, unless that value itself is there anyway."""
        node = self.nodes[node_id]
        while node.op == "reindex" and node.id not in self.stored and self.available is None:
            node = self.nodes[node.inputs[0]]
        return node.id

    def cost(self, node: Node) -> int:
        """Bytes moved if the backward receives ``node``."""
        if not node.is_tensor or (node.op == "opaque" and node.attribute("results") > 1):
            return INFINITE
        if self.available is not None and node.id not in self.available:
            return INFINITE
        size = max(stored_bytes(self.nodes, node), 1)
        if node.op == "input" or node.id in self.stored:
            return size
        return 2 * size

    def _is_start(self, node: Node) -> bool:
        """Whether the backward cannot compute the value from its operands."""
        if node.op == "input":
            return True
        repeated = (Kind.REDUCTION, Kind.LOOKUP) if self.available is not None else ()
        kind = OPS[node.op].kind
        return node.id < self.forward and not is_reshape(node) and kind in _NOT_REPEATED and kind not in repeated

    def _operands(self, node_id: int) -> list[int]:
        """Tensor operands; the extents that host scalars read are known without the tensor."""
        return [i for i in dict.fromkeys(self.nodes[node_id].inputs) if self.nodes[i].is_tensor]

    def _needed(self, results: Iterable[int]) -> set[int]:
        """Values independent of the incoming gradients that ``results`` read directly."""
        found: set[int] = set()
        seen: set[int] = set()
        stack = list(results)
        while stack:
            node_id = stack.pop()
            if node_id in seen:
                continue
            seen.add(node_id)
            if node_id in self.late:
                stack += self._operands(node_id)
            elif self.nodes[node_id].is_tensor:
                found.add(node_id)
        return found

    def _above(self, needed: Iterable[int]) -> set[int]:
        found: set[int] = set()
        stack = list(needed)
        while stack:
            node_id = stack.pop()
            if node_id not in found:
                found.add(node_id)
                stack += self._operands(node_id)
        return found
