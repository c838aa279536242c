"""Numbers are as long as they matter, and large ones have no exponent."""

from __future__ import annotations

import pytest

from ortfuse.runtime.bench.number_format import digits


@pytest.mark.parametrize(
    ("number", "text"),
    [(0.012345, "0.0123"), (5.0, "5.00"), (99.95, "100"), (999.4, "999"), (999.7, "1,000"), (1810.4, "1,810")],
)
def test_large_numbers_have_no_exponent(number: float, text: str) -> None:
    assert digits(number) == text


def test_more_digits_are_kept_where_they_are_asked_for() -> None:
    assert (digits(1810.4, 4), digits(474.31, 4), digits(12345.6, 4)) == ("1,810", "474.3", "12,346")
