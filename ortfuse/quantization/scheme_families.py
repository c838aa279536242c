"""Group schemes into families, including variants for other forms of an operator."""

from __future__ import annotations

from collections.abc import Collection

QDQ = "qdq"
"""Part of the names of families that consist of QuantizeLinear and DequantizeLinear, for other tools."""

FORMS = ("conv", "lstm", "batched", "left", QDQ, f"{QDQ}_conv")
"""Suffixes of the names of families for other forms of an operator."""


def family_of(scheme: str) -> str:
    """Return the family of a scheme, which does not depend on ranges or scales: its name up to the dot."""
    return scheme.partition(".")[0]


def names_of(families: Collection[str]) -> str:
    """The names of families in words, without those for other forms of an operator if the name that takes them in is there.

    `dynamic_int8` stands for itself and `dynamic_int8_conv`, but `dynamic_int8_lstm` alone stays that.
    """
    forms = {f"{family}_{form}": family for family in families for form in FORMS}
    return ", ".join(dict.fromkeys(forms.get(family, family) for family in families))


def is_qdq(scheme: str) -> bool:
    """Whether a scheme is spelled for other tools."""
    return QDQ in family_of(scheme).split("_")


def is_like(scheme: str, name: str) -> bool:
    """Whether a scheme is the one of this name, or one for another form of the operator: called so, and more."""
    if scheme == name or scheme.startswith(f"{name}_"):
        return True
    (family, _, form), (other, _, same) = scheme.partition("."), name.partition(".")
    return form == same and any(family == f"{other}_{operator}" for operator in FORMS)
