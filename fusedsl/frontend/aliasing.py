# SPDX-License-Identifier: Apache-2.0
"""Which values share memory in eager torch, and in-place operations.

A handle (a ``TensorValue`` object) stands for one tensor object of the eager run. Handles that share memory belong to
one ``Storage``. An in-place operation gives its handle the new node, so that every name that holds the handle sees it;
the other live handles of the storage get the same value through their own view of it (:class:`View`).
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from fusedsl.frontend.callables import TensorValue
from fusedsl.frontend.callables.values import detached, reindex
from fusedsl.graph.builder import Builder
from fusedsl.graph.types import Extent


class Storage:
    """Memory of eager tensors: ``argument`` is the graph input that owns it, None for a computed value's."""

    __slots__ = ("argument", "handles")

    def __init__(self, argument: int | None) -> None:
        self.argument = argument
        self.handles: list[weakref.ref[TensorValue]] = []


@attrs.frozen
class View:
    """How a value reads another one: per dim the dim that it reads or None, and whether gradients stop on the way."""

    dims: tuple[int | None, ...]
    detached: bool = False

    def of(self, base: TensorValue, shape: tuple[Extent, ...]) -> TensorValue:
        """This view, of ``shape``, of another value of the shape that it was found on."""
        found = reindex(base, self.dims, shape)
        return detached(found) if self.detached else found

    def undo(self, value: TensorValue, shape: tuple[Extent, ...]) -> TensorValue:
        """What has ``shape`` and reads as ``value`` through this view, which drops and repeats no element."""
        dims = [self.dims.index(d) if d in self.dims else None for d in range(len(shape))]
        return reindex(value, dims, shape)


class Aliases:
    """The storages of all handles of one trace."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self._storages: dict[int, tuple[weakref.ref[TensorValue], Storage]] = {}
        self._arguments: dict[int, Storage] = {}

    def storage(self, value: TensorValue) -> Storage:
        """The storage of a handle; a handle not seen before gets that of the argument it views, or one of its own."""
        known = self._storages.get(id(value))
        if known is not None and known[0]() is value:
            return known[1]
        argument = self._argument(value)
        if argument is None:
            return self.join(value, Storage(None))
        return self.join(value, self._arguments.setdefault(argument, Storage(argument)))

    def join(self, value: TensorValue, storage: Storage) -> Storage:
        """Say that a handle's memory is ``storage``."""
        reference = weakref.ref(value)
        self._storages[id(value)] = (reference, storage)
        storage.handles.append(reference)
        return storage

    def track(self, result: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """``result`` of an operation, its handles joined to the operands whose memory they may share."""
        if isinstance(result, TensorValue):
            self._track(result, args, kwargs)
        elif isinstance(result, (tuple, list)):
            for item in result:
                self.track(item, args, kwargs)
        return result

    def _track(self, result: TensorValue, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        known = self._storages.get(id(result))
        if known is not None and known[0]() is result:
            return
        root = self.root(result.id)
        for operand in _tensors([*args, *kwargs.values()]):
            if operand is result:
                return
            if self.root(operand.id) == root:
                self.join(result, self.storage(operand))
                return
        self.join(result, Storage(None))

    def others(self, value: TensorValue) -> list[TensorValue]:
        """The other live handles that share the memory of ``value``."""
        found = (reference() for reference in self.storage(value).handles)
        return [handle for handle in found if handle is not None and handle is not value]

    def view(self, node_id: int, base: int) -> View | None:
        """How the node ``node_id`` reads ``base``; None if something else than ``reindex`` stands between them."""
        dims: tuple[int | None, ...] = tuple(range(self.builder.tensor(node_id).rank))
        stopped = False
        while node_id != base:
            node = self.builder.nodes[node_id]
            if node.op != "reindex":
                return None
            inner = node.attribute("dims")
            dims = tuple(None if d is None else inner[d] for d in dims)
            stopped = stopped or bool(dict(node.attributes).get("detached"))
            node_id = node.inputs[0]
        return View(dims, stopped)

    def replace(self, value: TensorValue, node_id: int) -> None:
        """Let the handle stand for another node from now on, in every name and container that holds it."""
        object.__setattr__(value, "id", node_id)

    def _argument(self, value: TensorValue) -> int | None:
        node = self.builder.nodes[self.root(value.id)]
        return node.attribute("index") if node.op == "input" else None

    def root(self, node_id: int) -> int:
        """The node whose memory a node may be in: ``contiguous`` may return its operand."""
        node = self.builder.nodes[node_id]
        while node.op in ("reindex", "contiguous"):
            node = self.builder.nodes[node.inputs[0]]
        return node.id


def _tensors(items: Sequence[Any]) -> list[TensorValue]:
    found: list[TensorValue] = []
    for item in items:
        if isinstance(item, TensorValue):
            found.append(item)
        elif isinstance(item, (tuple, list)):
            found += _tensors(item)
    return found
