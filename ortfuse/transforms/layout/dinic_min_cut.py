"""Minimum cuts, by Dinic's algorithm (Dinitz, Soviet Mathematics Doklady 11, 1970)."""

from __future__ import annotations

from collections import deque

UNCUT = 1 << 90
"""The capacity of an edge that must not be cut."""


class Network:
    """A directed network with a source and a sink; other nodes are numbered as they are added."""

    SOURCE, SINK = 0, 1

    def __init__(self) -> None:
        self._edges: list[list[int]] = [[], []]
        self._to: list[int] = []
        self._room: list[int] = []
        self._given: list[int] = [0, 0]
        self._taken: list[int] = [0, 0]

    def node(self) -> int:
        """Add a node."""
        self._edges.append([])
        self._given.append(0)
        self._taken.append(0)
        return len(self._edges) - 1

    def edge(self, start: int, end: int, capacity: int) -> None:
        """Add an edge, whose capacity is paid if `start` ends on the source's side and `end` on the sink's."""
        if capacity <= 0 or start == end:
            return
        if start == self.SOURCE and end != self.SINK:
            self._given[end] += capacity
        elif end == self.SINK and start != self.SOURCE:
            self._taken[start] += capacity
        else:
            self._connect(start, end, capacity)

    def _connect(self, start: int, end: int, capacity: int) -> None:
        for one, other, room in ((start, end, capacity), (end, start, 0)):
            self._edges[one].append(len(self._to))
            self._to.append(other)
            self._room.append(room)

    def cut(self, *, near_sink: bool = False) -> tuple[int, list[bool]]:
        """The capacity of a minimum cut, and for each node whether it is on the sink's side.

        Among all minimum cuts it is the one nearest the source, so that as many nodes as possible are on the sink's side; or
        the one nearest the sink.
        """
        total = self._straight()
        while True:
            level = self._levels()
            if level[self.SINK] < 0:
                return total, self._ending() if near_sink else [depth < 0 for depth in level]
            total += self._push(level)

    def _straight(self) -> int:
        """Let flow through nodes that the source gives what the sink takes; edges are made for what is left."""
        total = 0
        for node, (given, taken) in enumerate(zip(self._given, self._taken, strict=True)):
            through = min(given, taken)
            total += through
            if given > through:
                self._connect(self.SOURCE, node, given - through)
            if taken > through:
                self._connect(node, self.SINK, taken - through)
        return total

    def _levels(self) -> list[int]:
        """The distance of each node from the source along edges with room; -1 if it is beyond the sink, or there is no way."""
        edges, to, room = self._edges, self._to, self._room
        level = [-1] * len(edges)
        level[self.SOURCE] = 0
        pending = deque([self.SOURCE])
        while pending:
            node = pending.popleft()
            for edge in edges[node]:
                end = to[edge]
                if room[edge] and level[end] < 0:
                    level[end] = level[node] + 1
                    if end == self.SINK:
                        return level
                    pending.append(end)
        return level

    def _ending(self) -> list[bool]:
        """The nodes from which there still is a way to the sink."""
        found = [False] * len(self._edges)
        found[self.SINK] = True
        pending = [self.SINK]
        while pending:
            for edge in self._edges[pending.pop()]:
                end = self._to[edge]
                if self._room[edge ^ 1] and not found[end]:
                    found[end] = True
                    pending.append(end)
        return found

    def _push(self, level: list[int]) -> int:
        """Push flow along paths of nodes with rising levels until there is none; returns how much."""
        edges, to, room = self._edges, self._to, self._room
        following = [0] * len(edges)
        path: list[int] = []
        node, total = self.SOURCE, 0
        while True:
            if node == self.SINK:
                least = min(room[edge] for edge in path)
                total += least
                for edge in path:
                    room[edge] -= least
                    room[edge ^ 1] += least
                full = next(place for place, edge in enumerate(path) if not room[edge])
                node = to[path[full] ^ 1]
                del path[full:]
            while following[node] < len(edges[node]):
                edge = edges[node][following[node]]
                if room[edge] and level[to[edge]] == level[node] + 1:
                    path.append(edge)
                    node = to[edge]
                    break
                following[node] += 1
            else:
                if not path:
                    return total
                node = to[path.pop() ^ 1]
                following[node] += 1
