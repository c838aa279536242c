"""Rungs in company: what neighbours save each other."""

from __future__ import annotations

import pytest

from ortfuse.quantization.interaction_cost import Company, shared
from ortfuse.quantization.scheme_families import family_of
from ortfuse.quantization.site_measurements import MeasuredSite, Rung


def site(name: str, seconds: float, rung: float) -> MeasuredSite:
    return MeasuredSite(
        name, "", "", seconds, 0, (Rung("static.a", rung, 0), Rung("static.b", rung, 0), Rung("other.a", rung, 0))
    )


def test_what_a_family_wins_besides_is_shared_by_the_time_in_float32() -> None:
    sites = [site("a", 1.0, 1.0), site("b", 3.0, 3.0)]
    found = shared(sites, {"static": Company({"a": "static.a", "b": "static.b"}, 0.8)}, 10.0)
    assert [rung.seconds for rung in found[0].rungs] == pytest.approx([0.5, 0.5, 1.0])
    assert [rung.seconds for rung in found[1].rungs] == pytest.approx([1.5, 1.5, 3.0])


def test_what_it_loses_is_shared_too() -> None:
    found = shared([site("a", 1.0, 0.5)], {"static": Company({"a": "static.a"}, 1.05)}, 10.0)
    assert found[0].rungs[0].seconds == pytest.approx(1.5)


def test_sites_that_take_longer_alone_than_in_the_whole_win_in_their_own_seconds() -> None:
    """Together they take 4 of the whole's 1 second: half of that is 2 of theirs, of which alone they win 1."""
    sites = [site("a", 2.0, 1.5), site("b", 2.0, 1.5)]
    found = shared(sites, {"static": Company({"a": "static.a", "b": "static.b"}, 0.5)}, 1.0)
    assert [rung.seconds for one in found for rung in one.rungs] == pytest.approx(2 * [1.0, 1.0, 1.5])


def test_no_rung_takes_less_than_nothing() -> None:
    found = shared([site("a", 1.0, 0.5)], {"static": Company({"a": "static.a"}, 0.1)}, 10.0)
    assert found[0].rungs[0].seconds > 0


def test_variants_of_one_form_are_a_family() -> None:
    assert (
        family_of("static_int8.entropy") == family_of("static_int8.extremes") != family_of("static_int8_conv.extremes")
    )
