"""Families of rungs, and the forms of an operator that have families of their own."""

from __future__ import annotations

FORMS = ("conv", "lstm", "batched", "left")
"""What the names of families end with that are for other forms of an operator."""


def family_of(rung: str) -> str:
    """What rungs that differ in ranges or scales have in common: their name up to the dot."""
    return rung.partition(".")[0]


def family_for_all(family: str) -> str:
    """The name that takes in all forms of an operator: `dynamic_int8` for `dynamic_int8_conv`."""
    name, _, form = family.rpartition("_")
    return name if form in FORMS else family


def is_like(rung: str, name: str) -> bool:
    """Whether a rung is the one of this name, or one for another form of the operator: called so, and more."""
    if rung == name or rung.startswith(f"{name}_"):
        return True
    (family, _, form), (other, _, same) = rung.partition("."), name.partition(".")
    return form == same and any(family == f"{other}_{operator}" for operator in FORMS)
