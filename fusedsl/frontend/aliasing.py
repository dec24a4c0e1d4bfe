# SPDX-License-Identifier: Apache-2.0
"""Which values share memory in eager torch, and in-place operations.

A handle (a ``TensorValue`` object) stands for one tensor object of the eager run. Handles that share memory belong to
one ``Storage``. An in-place operation gives its handle the new node, so that every name that holds the handle sees it;
it is refused when another live handle shares the memory, or when the memory is not the function's own.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from fusedsl.frontend.callables import TensorValue
from fusedsl.graph.builder import Builder


class Storage:
    """Memory of eager tensors: ``owner`` names an argument or captured tensor, None for a computed value."""

    __slots__ = ("handles", "owner")

    def __init__(self, owner: str | None) -> None:
        self.owner = owner
        self.handles: list[weakref.ref[TensorValue]] = []


class Aliases:
    """The storages of all handles of one trace."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self._storages: dict[int, tuple[weakref.ref[TensorValue], Storage]] = {}

    def storage(self, value: TensorValue) -> Storage:
        """The storage of a handle; a handle not seen before gets one of its own."""
        known = self._storages.get(id(value))
        if known is not None and known[0]() is value:
            return known[1]
        return self.join(value, Storage(self._owner(value)))

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
        root = self._root(result.id)
        for operand in _tensors([*args, *kwargs.values()]):
            if operand is result:
                return
            if self._root(operand.id) == root:
                self.join(result, self.storage(operand))
                return
        self.join(result, Storage(None))

    def others(self, value: TensorValue) -> bool:
        """Whether another live handle shares the memory of ``value``."""
        found = (reference() for reference in self.storage(value).handles)
        return any(handle is not None and handle is not value for handle in found)

    def replace(self, value: TensorValue, node_id: int) -> None:
        """Let the handle stand for another node from now on, in every name and container that holds it."""
        object.__setattr__(value, "id", node_id)

    def _owner(self, value: TensorValue) -> str | None:
        node = self.builder.nodes[self._root(value.id)]
        return node.name if node.op == "input" else None

    def _root(self, node_id: int) -> int:
        node = self.builder.nodes[node_id]
        while node.op == "reindex":
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
