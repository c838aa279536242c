"""Identities of And, Or, Xor and Not."""

from __future__ import annotations

from .._identity import EXACT, identity

AND_OR = ({"n": "and", "f": "&", "m": "or", "g": "|"}, {"n": "or", "f": "|", "m": "and", "g": "&"})

CANONICAL = [
    *identity("not_of_not", "~~p -> p", EXACT),
    *identity("and_with_true", "p & fill(True) -> p", EXACT),
    *identity("{n}_with_false", "p {f} fill(False) -> p", EXACT, each=({"n": "or", "f": "|"}, {"n": "xor", "f": "^"})),
    *identity("equal_to_true", "p == fill(True) -> p", EXACT, when="boolean(p)"),
    *identity("idempotent_and_or", "p & p or p | p -> p", EXACT),
]

SIMPLIFYING = [
    *identity("xor_with_true", "p ^ fill(True) -> ~p", EXACT),
    *identity("equal_to_false", "p == fill(False) -> ~p", EXACT, when="boolean(p)"),
    *identity("and_with_own_not", "p & ~p -> False", EXACT),
    *identity("{n}_with_own_not", "p {f} ~p -> True", EXACT, each=({"n": "or", "f": "|"}, {"n": "xor", "f": "^"})),
    *identity("xor_of_same", "p ^ p -> False", EXACT),
    *identity("{n}_of_nots", "~p {f} ~q -> ~(p {g} q)", EXACT, each=AND_OR),
    *identity("{n}_of_{n}", "p {f} (p {f} q) -> p {f} q", EXACT, each=AND_OR),
    *identity("{n}_absorbs_{m}", "p {f} (p {g} q) -> p", EXACT, each=AND_OR),
]
