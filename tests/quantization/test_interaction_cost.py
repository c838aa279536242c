"""Schemes in interaction: what neighbours save each other."""

from __future__ import annotations

import pytest

from ortfuse.quantization.interaction_cost import Interaction, shared
from ortfuse.quantization.scheme_families import family_of
from ortfuse.quantization.site_measurements import MeasuredScheme, MeasuredSite


def site(name: str, seconds: float, scheme: float) -> MeasuredSite:
    return MeasuredSite(
        name,
        "",
        "",
        seconds,
        0,
        (
            MeasuredScheme("static.a", scheme, 0),
            MeasuredScheme("static.b", scheme, 0),
            MeasuredScheme("other.a", scheme, 0),
        ),
    )


def test_what_a_family_wins_besides_is_shared_by_the_time_in_float32() -> None:
    sites = [site("a", 1.0, 1.0), site("b", 3.0, 3.0)]
    found = shared(sites, {"static": Interaction({"a": "static.a", "b": "static.b"}, 0.8)}, 10.0)
    assert [scheme.seconds for scheme in found[0].schemes] == pytest.approx([0.5, 0.5, 1.0])
    assert [scheme.seconds for scheme in found[1].schemes] == pytest.approx([1.5, 1.5, 3.0])


def test_what_it_loses_is_shared_too() -> None:
    found = shared([site("a", 1.0, 0.5)], {"static": Interaction({"a": "static.a"}, 1.05)}, 10.0)
    assert found[0].schemes[0].seconds == pytest.approx(1.5)


def test_sites_that_take_longer_alone_than_in_the_whole_win_in_their_own_seconds() -> None:
    """Together they take 4 of the whole's 1 second: half of that is 2 of theirs, of which alone they win 1."""
    sites = [site("a", 2.0, 1.5), site("b", 2.0, 1.5)]
    found = shared(sites, {"static": Interaction({"a": "static.a", "b": "static.b"}, 0.5)}, 1.0)
    assert [scheme.seconds for one in found for scheme in one.schemes] == pytest.approx(2 * [1.0, 1.0, 1.5])


def test_no_scheme_takes_less_than_nothing() -> None:
    found = shared([site("a", 1.0, 0.5)], {"static": Interaction({"a": "static.a"}, 0.1)}, 10.0)
    assert found[0].schemes[0].seconds > 0


def test_variants_of_one_form_are_a_family() -> None:
    assert (
        family_of("static_int8.entropy") == family_of("static_int8.extremes") != family_of("static_int8_conv.extremes")
    )
