"""How choices are compared with those of measuring every site. Nothing here is measured."""

from __future__ import annotations

from benchmarks.calibration.measure import Site, verdict


def test_a_choice_is_the_same_where_both_take_the_rewrite_or_neither_does() -> None:
    assert Site("r", "x 1", 1.5, 1.1).same
    assert Site("r", "x 1", 0.5, 0.8).same
    assert not Site("r", "x 1", 0.5, 1.2).same
    assert Site("r", "x 1", 1.2, None).same  # what the table does not have is taken
    assert not Site("r", "x 1", 0.5, None).same


def test_close_sites_are_counted_apart() -> None:
    sites = [
        Site("r", "x 1", 1.5, 1.1, {"a", "b"}),
        Site("r", "x 2", 0.98, 0.9, {"c"}),
        Site("r", "x 3", 0.5, 1.1, {"d"}),
    ]
    assert verdict(sites) == {"sites": 4, "same": 2, "clear": 3, "same of clear": 2}
