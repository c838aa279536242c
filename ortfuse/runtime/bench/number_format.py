"""Format numbers with a given number of significant digits, without exponents for large ones."""

from __future__ import annotations


def digits(number: float, count: int = 3) -> str:
    """A number with so many digits that matter, zeros among them, and never with an exponent because it is large."""
    is_large = abs(float(f"{number:.{count}g}")) >= 1000
    return f"{number:,.0f}" if is_large or not number else f"{number:#.{count}g}".removesuffix(".")
