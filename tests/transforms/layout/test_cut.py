"""Minimum cuts are compared with all ways to part a network."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ortfuse.transforms.layout.dinic_min_cut import Network


@pytest.mark.parametrize("near_sink", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_no_cut_is_smaller(seed: int, near_sink: bool) -> None:
    rng = np.random.default_rng(seed)
    count = 6
    network = Network()
    nodes = [Network.SOURCE, Network.SINK, *(network.node() for _ in range(count))]
    edges = [(a, b, int(rng.integers(0, 9))) for a in nodes for b in nodes if a != b and rng.random() < 0.5]
    for start, end, capacity in edges:
        network.edge(start, end, capacity)
    total, beyond = network.cut(near_sink=near_sink)

    def price(side: dict[int, bool]) -> int:
        return sum(capacity for start, end, capacity in edges if not side[start] and side[end])

    sides = [
        {Network.SOURCE: False, Network.SINK: True, **dict(zip(nodes[2:], chosen, strict=True))}
        for chosen in itertools.product((False, True), repeat=count)
    ]
    assert total == min(map(price, sides))
    assert total == price(dict(enumerate(beyond)))
    counts = [sum(side.values()) for side in sides if price(side) == total]
    assert sum(beyond) == (min(counts) if near_sink else max(counts))
