"""The document of `ortfuse explain`, and its blocks: the fused sites, and the nearest misses with their reasons."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ortfuse.report.document import Block, Document, Item, Items, Notes, Rows
from ortfuse.verification.explanation import Explanation, Fused, Missed

MOST_MISSES = 40
"""The most misses on the terminal, those of one rule with the same reason counted as one."""

LONGEST_REASON = 240
"""The letters of a reason on the terminal, which may name a long pattern."""


def explanation_document(name: str, found: Explanation) -> Document:
    """Show the match sites of rules in a model, fused and missed.

    Args:
        name: The name of the model.
        found: The explanation.
    """
    blocks = [*explanation_blocks(found), Notes("Remarks", found.notes, "note: ", "yellow")]
    fused, missed = (f"{len(sites)} site{'s' * (len(sites) != 1)}" for sites in (found.fused, found.missed))
    return Document(f"{name}, explained", f"Rules fused {fused}, and nearly matched at {missed}.", blocks)


def explanation_blocks(found: Explanation) -> list[Block]:
    """Show the fused sites in a table, then the nearest misses, and the rules that have no site."""
    misses = [_item(alike) for alike in _alike(found.missed)]
    blocks: list[Block] = [
        _fused(found.fused),
        Items("What was not fused, and why", misses, "bold", MOST_MISSES, LONGEST_REASON),
        Notes("Rewritten by others", [f"{taken.rule}: {taken.text()}" for taken in found.lost]),
    ]
    reasons: dict[str, list[str]] = {}
    for rule, why in found.absent.items():
        reasons.setdefault(why, []).append(rule)
    blocks.append(Notes("Rules without a site", [f"{', '.join(rules)}: {why}" for why, rules in reasons.items()]))
    if not (found.missed or found.absent or found.lost):
        none = "no fusion has a site in this model, nor comes near to one"
        blocks.append(Notes("Misses", ["no other site comes near to a fusion" if found.fused else none]))
    return blocks


def _fused(sites: Iterable[Fused]) -> Rows:
    rows = [(one.rule, one.site, ", ".join(one.operators), _originals(one.nodes)) for one in sites]
    return Rows("Fused", ("rule", "site", "made", "replaces"), rows, folded=True, whole=frozenset({0}))


def _item(misses: Sequence[Missed]) -> Item:
    """Misses of one rule with the same reason."""
    miss = misses[0]
    where = f"'{miss.site}' ({miss.root})"
    if len(misses) > 1:
        where = f"{len(misses)} sites, {where} and others"
    lines = [f"stopped by: {miss.refusal.reason}", f"would match if {miss.refusal.remedy}"]
    return Item(f"{miss.rule} at {where}: {_matched(miss)}", lines, [one.site for one in misses[1:]])


def _alike(found: Iterable[Missed]) -> list[list[Missed]]:
    """The misses, those of one rule with the same reason together."""
    groups: dict[tuple[str, str, str, int], list[Missed]] = {}
    for miss in found:
        key = (miss.rule, miss.refusal.reason, miss.refusal.remedy, miss.matched)
        groups.setdefault(key, []).append(miss)
    return list(groups.values())


def _matched(miss: Missed) -> str:
    """The nodes of a pattern that matched."""
    if miss.step != "pattern":
        return f"all of the pattern matched, {_nodes(miss.matched)}"
    return f"{_nodes(miss.matched)} matched" + (f" of at least {miss.minimum}" if miss.matched < miss.minimum else "")


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"


def _originals(names: Sequence[str]) -> str:
    """The number of nodes that a fused one replaces, with the name of the first."""
    more = ", ..." if len(names) > 1 else ""
    return f"{_nodes(len(names))}: {names[0]}{more}" if names else "none"
