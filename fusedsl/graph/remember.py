# SPDX-License-Identifier: Apache-2.0
"""Results remembered by the identity of a graph: equal graphs may differ in names and source lines."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from typing import Concatenate, ParamSpec, TypeVar

from fusedsl.graph.graph import Graph

P = ParamSpec("P")
R = TypeVar("R")


class _Same:
    """Equal to another of the same graph object only; keeps it alive, so that its id stays its own."""

    __slots__ = ("graph",)

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.graph is self.graph

    def __hash__(self) -> int:
        return id(self.graph)


def remember(maxsize: int) -> Callable[[Callable[Concatenate[Graph, P], R]], Callable[Concatenate[Graph, P], R]]:
    """``functools.lru_cache`` for functions of a graph (and hashable positional arguments), keyed by the very graph."""

    def decorate(fn: Callable[Concatenate[Graph, P], R]) -> Callable[Concatenate[Graph, P], R]:
        @functools.lru_cache(maxsize)
        def cached(same: _Same, *args: Hashable) -> R:
            return fn(same.graph, *args)  # type: ignore[arg-type, call-arg]

        @functools.wraps(fn)
        def call(graph: Graph, /, *args: P.args, **kwargs: P.kwargs) -> R:
            assert not kwargs, "arguments are remembered by position"
            return cached(_Same(graph), *args)

        return call

    return decorate
