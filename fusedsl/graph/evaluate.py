# SPDX-License-Identifier: Apache-2.0
"""Runs a graph node by node in eager torch: the definition of what a graph means, on any device, meta included."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch

from fusedsl.graph import random
from fusedsl.graph.graph import Graph, Node
from fusedsl.graph.host import host_function
from fusedsl.graph.opaque import resolve_function
from fusedsl.graph.ops import OPS, Kind
from fusedsl.graph.types import Extent, Symbol, TensorType, compute_dtype

#: "eager" rounds after every op, as torch does; "kernel" computes 16-bit floats in float32 and rounds at explicit
#: casts, outputs and
#: operands of opaque ops only, as fused kernels do.
Numerics = Literal["eager", "kernel"]


def evaluate(
    graph: Graph,
    tensors: Sequence[torch.Tensor],
    scalars: Sequence[Any] = (),
    compute: Numerics = "eager",
    sizes: Mapping[Symbol, int] | None = None,
) -> list[torch.Tensor]:
    """The outputs of ``graph`` for these arguments.

    Args:
        graph: any graph, opaque ops included.
        tensors: one an input, of the input's dtype; all on one device.
        scalars: one a scalar input.
        compute: where 16-bit floats are rounded.
        sizes: what symbols stand for that no tensor carries (of a part of a graph).

    Returns:
        Tensors in the order of ``graph.outputs``; sizes and strides as eager torch gives them.
    """
    return _Evaluation(graph, tensors, scalars, compute == "kernel", sizes or {}).run()


class _Evaluation:
    """State of one run: the values so far and the sizes the symbols stand for."""

    def __init__(
        self,
        graph: Graph,
        tensors: Sequence[torch.Tensor],
        scalars: Sequence[Any],
        wide: bool,
        sizes: Mapping[Symbol, int],
    ) -> None:
        assert len(tensors) == len(graph.inputs), f"{graph.name} takes {len(graph.inputs)} tensors, got {len(tensors)}"
        assert len(scalars) == len(graph.scalars), (
            f"{graph.name} takes {len(graph.scalars)} scalars, got {len(scalars)}"
        )
        self.graph = graph
        self.wide = wide
        self.device = tensors[0].device if tensors else torch.device("cpu")
        self.sizes: dict[Symbol, int] = {}
        self.values: dict[int, Any] = dict(zip(graph.scalars, scalars, strict=True))
        for node_id, tensor in zip(graph.inputs, tensors, strict=True):
            self.values[node_id] = self._held(tensor)
            self._learn(graph[node_id].tensor, tensor)
        self.sizes = {**sizes, **self.sizes}

    def run(self) -> list[torch.Tensor]:
        last = self._last_use()
        for node in self.graph:
            if node.id not in self.values:
                self.values[node.id] = self._compute(node)
            for source in set(node.inputs):
                if last[source] == node.id:
                    self.values[source] = None
        return [self._narrow(self.values[i], self.graph[i]) for i in self.graph.outputs]

    def _last_use(self) -> dict[int, int]:
        last: dict[int, int] = {}
        for node in self.graph:
            for source in node.inputs:
                last[source] = node.id
        last.update((i, len(self.graph.nodes)) for i in self.graph.outputs)
        return last

    # dtypes and sizes ----------------------------------------------------------------------------------------------

    def _dtype(self, node: Node) -> torch.dtype:
        dtype = node.tensor.dtype
        return compute_dtype(dtype) if self.wide else dtype

    def _held(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.to(compute_dtype(tensor.dtype)) if self.wide else tensor

    def _narrow(self, value: Any, node: Node) -> Any:
        return value.to(node.tensor.dtype) if self.wide and isinstance(value, torch.Tensor) else value

    def _learn(self, type_: TensorType, tensor: torch.Tensor) -> None:
        for extent, size in zip(type_.shape, tensor.shape, strict=True):
            if isinstance(extent, Symbol):
                self.sizes.setdefault(extent, size)

    def _shape(self, shape: Sequence[Extent]) -> list[int]:
        return [self.sizes[e] if isinstance(e, Symbol) else e for e in shape]

    # nodes ---------------------------------------------------------------------------------------------------------

    def _compute(self, node: Node) -> Any:
        operands = [self.values[i] for i in node.inputs]
        row = OPS[node.op]
        if row.torch is not None:
            return (
                row.torch(*operands) if row.kind is Kind.POINTWISE else row.torch(operands[0], node.attribute("dims"))
            )
        match node.op:
            case "constant" | "scalar" | "size":
                return self._number(node, operands)
            case "full" | "iota" | "random":
                return self._factory(node, operands)
            case "gather":
                return _gather(operands[0], operands[1], node.attribute("dim"))
            case "reindex":
                return self._reindex(operands[0], node)
            case "cast":
                return self._cast(operands[0], node)
            case "opaque":
                return self._opaque(node)
            case "item":
                return self._result(operands[0][node.attribute("index")], node)
            case _:
                raise AssertionError(f"unknown op {node.op}")

    def _number(self, node: Node, operands: list[Any]) -> Any:
        if node.op == "constant":
            return node.attribute("value")
        if node.op == "size":
            return operands[0].shape[node.attribute("dim")]
        return host_function(node.attribute("function"))(*operands)

    def _factory(self, node: Node, operands: list[Any]) -> torch.Tensor:
        shape = self._shape(node.tensor.shape)
        if node.op == "full":
            return torch.full(shape, operands[0], dtype=self._dtype(node), device=self.device)
        if node.op == "random":
            seed, offset, threads = operands
            return random.uniform(shape, seed, offset, threads, node.attribute("itemsize"), self.device)
        dim = node.attribute("dim")
        positions = torch.arange(shape[dim], dtype=node.tensor.dtype, device=self.device)
        return positions.view([-1 if d == dim else 1 for d in range(len(shape))]).expand(shape)

    def _cast(self, source: torch.Tensor, node: Node) -> torch.Tensor:
        if node.attribute("explicit"):
            return self._held(source.to(node.tensor.dtype))
        return source.to(self._dtype(node))

    def _reindex(self, source: torch.Tensor, node: Node) -> torch.Tensor:
        if dict(node.attributes).get("detached"):
            source = source.detach()
        dims = node.attribute("dims")
        kept = [d for d in dims if d is not None]
        dropped = [d for d in range(source.dim()) if d not in kept]
        view = source.permute([*kept, *dropped])
        for _ in dropped:
            view = view.squeeze(-1)
        for place, dim in enumerate(dims):
            if dim is None:
                view = view.unsqueeze(place)
        return view.expand(self._shape(node.tensor.shape))

    def _opaque(self, node: Node) -> Any:
        operands = [self._narrow(self.values[i], self.graph[i]) for i in node.inputs]
        args, kwargs = node.attribute("call").fill(operands)
        if self.device.type == "meta" and kwargs.get("device") is not None:
            kwargs["device"] = self.device
        result = resolve_function(node.attribute("function"))(*args, **kwargs)
        return self._result(result, node) if isinstance(result, torch.Tensor) else result

    def _result(self, tensor: torch.Tensor, node: Node) -> torch.Tensor:
        self._learn(node.tensor, tensor)
        return self._held(tensor)


def _gather(source: torch.Tensor, index: torch.Tensor, dim: int) -> torch.Tensor:
    """One element of every row; a position outside the row gives some element of it (0 if it is empty)."""
    if source.shape[dim] == 0:
        return source.new_zeros(index.shape)
    return torch.gather(source, dim, index.clamp(0, source.shape[dim] - 1).unsqueeze(dim)).squeeze(dim)
