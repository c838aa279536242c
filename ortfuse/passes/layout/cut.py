"""Minimum cuts, by Dinic's algorithm (Dinitz, Soviet Mathematics Doklady 11, 1970)."""

from __future__ import annotations

from collections import deque

UNCUT = 1 << 60
"""The capacity of an edge that must not be cut."""


class Network:
    """A directed network with a source and a sink; other nodes are numbered as they are added."""

    SOURCE, SINK = 0, 1

    def __init__(self) -> None:
        self._edges: list[list[int]] = [[], []]
        self._to: list[int] = []
        self._room: list[int] = []

    def node(self) -> int:
        """Add a node."""
        self._edges.append([])
        return len(self._edges) - 1

    def edge(self, start: int, end: int, capacity: int) -> None:
        """Add an edge, whose capacity is paid if `start` ends on the source's side and `end` on the sink's."""
        if capacity <= 0 or start == end:
            return
        for one, other, room in ((start, end, capacity), (end, start, 0)):
            self._edges[one].append(len(self._to))
            self._to.append(other)
            self._room.append(room)

    def cut(self) -> tuple[int, list[bool]]:
        """The capacity of a minimum cut, and for each node whether it is on the sink's side of the one nearest the source."""
        total = 0
        while True:
            level = self._levels()
            if level[self.SINK] < 0:
                return total, [depth < 0 for depth in level]
            following = [0] * len(self._edges)
            while pushed := self._push(level, following):
                total += pushed

    def _levels(self) -> list[int]:
        """The distance of each node from the source along edges with room; -1 if there is no way."""
        level = [-1] * len(self._edges)
        level[self.SOURCE] = 0
        pending = deque([self.SOURCE])
        while pending:
            node = pending.popleft()
            for edge in self._edges[node]:
                end = self._to[edge]
                if self._room[edge] and level[end] < 0:
                    level[end] = level[node] + 1
                    pending.append(end)
        return level

    def _push(self, level: list[int], following: list[int]) -> int:
        """Push flow along one path of nodes with rising levels; 0 if there is none."""
        path: list[int] = []
        node = self.SOURCE
        while node != self.SINK:
            edges = self._edges[node]
            while following[node] < len(edges):
                edge = edges[following[node]]
                if self._room[edge] and level[self._to[edge]] == level[node] + 1:
                    break
                following[node] += 1
            else:
                if not path:
                    return 0
                node = self._to[path.pop() ^ 1]
                following[node] += 1
                continue
            path.append(edge)
            node = self._to[edge]
        room = min(self._room[edge] for edge in path)
        for edge in path:
            self._room[edge] -= room
            self._room[edge ^ 1] += room
        return room
