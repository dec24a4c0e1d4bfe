# SPDX-License-Identifier: Apache-2.0
"""Maximum flow between two vertices, for the cheapest cut that separates them."""

from __future__ import annotations

from collections import deque

#: A capacity that no cut pays.
INFINITE = 1 << 62


class FlowNetwork:
    """A directed network with integer capacities; vertices are numbers."""

    def __init__(self, vertices: int) -> None:
        self.edges: list[list[int]] = [[] for _ in range(vertices)]
        self.head: list[int] = []
        self.room: list[int] = []

    def connect(self, tail: int, head: int, capacity: int) -> None:
        """Add an edge."""
        for vertex, other, room in ((tail, head, capacity), (head, tail, 0)):
            self.edges[vertex].append(len(self.head))
            self.head.append(other)
            self.room.append(room)

    def saturate(self, source: int, sink: int) -> int:
        """Push flow along shortest paths until none is left; the total."""
        total = 0
        while True:
            path = self._path(source, sink)
            if not path:
                return total
            amount = min(self.room[e] for e in path)
            for edge in path:
                self.room[edge] -= amount
                self.room[edge ^ 1] += amount
            total += amount

    def _path(self, source: int, sink: int) -> list[int]:
        came: dict[int, int] = {source: -1}
        queue = deque([source])
        while queue and sink not in came:
            vertex = queue.popleft()
            for edge in self.edges[vertex]:
                if self.room[edge] > 0 and self.head[edge] not in came:
                    came[self.head[edge]] = edge
                    queue.append(self.head[edge])
        if sink not in came:
            return []
        path = []
        vertex = sink
        while vertex != source:
            path.append(came[vertex])
            vertex = self.head[came[vertex] ^ 1]
        return path

    def reaching(self, sink: int) -> set[int]:
        """Vertices from which flow could still reach ``sink``."""
        found = {sink}
        stack = [sink]
        while stack:
            for edge in self.edges[stack.pop()]:
                tail = self.head[edge]
                if self.room[edge ^ 1] > 0 and tail not in found:
                    found.add(tail)
                    stack.append(tail)
        return found
