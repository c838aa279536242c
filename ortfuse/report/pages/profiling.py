"""The page of `ortfuse profile`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ortfuse.page.blocks import Bar, Bars, Block, Card, Cards, Dot, Notes, Page, Rows, Scatter
from ortfuse.profiling import Group, Profile
from ortfuse.report.pages.common import change, command, environment

MOST_BARS, MOST_BLOCKS = 16, 8

LONGEST = 26
"""The letters of a label that are seen."""

_SHARES = (
    "Shares are of the time of all executed nodes; what lies between them counts for its share of a run. One node can be part of "
    "several rows, so that they may add up to more than 100 %."
)

_VIEWS = {
    "role": ("By module", "Layers that are alike are added up, under * for their numbers."),
    "operator": ("By operator", "The operators that the runtime executes."),
    "rule": ("By what made it", "Rules of ortfuse, the runtime when it created the session, or the model."),
    "block": ("By fused block", "What was made of several nodes, by the one that computed its result."),
}


def profile_page(model: str, found: Profile) -> Page:
    """Where the time of a model goes.

    Args:
        model: What the model is called.
        found: Its profile.
    """
    blocks: list[Block] = [_cards(found)]
    if found.bottlenecks:
        rows = [(one.what, f"{one.share:.1%}", one.remedy) for one in found.bottlenecks]
        blocks.append(
            Rows(
                "What takes the time, and what can be done", ("what", "share", "remedy"), rows, _SHARES, frozenset({1})
            )
        )
    for view, (title, about) in _VIEWS.items():
        if groups := found.by(view):
            most = MOST_BLOCKS if view == "block" else MOST_BARS
            blocks.append(_bars(title, about, groups, most))
    blocks += [_roofline(found), *_creation(found), _kernels(found)]
    if found.notes:
        blocks.append(Notes("What to know about the numbers", found.notes))
    return Page(f"Where the time of {model} goes", _summary(found), blocks, command(), environment())


def _summary(found: Profile) -> str:
    first = found.by("operator")[:3]
    most = ", ".join(f"{group.name} {group.share:.0%}" for group in first)
    return f"A run takes {found.timing.p50_ms:.3g} ms at {found.sizes}. Most of it goes to {most or 'nothing'}."


def _cards(found: Profile) -> Cards:
    one = found.timing
    cards = [
        Card("median latency", f"{one.p50_ms:.3g} ms", f"{one.rounds} rounds"),
        Card("95 % of the runs within", f"{one.p95_ms:.3g} ms"),
        Card(
            "throughput", f"{one.throughput:{',.0f' if one.throughput >= 100 else '.3g'}} runs/s", "one after the other"
        ),
        Card("session creation", f"{one.session_ms:.3g} ms"),
    ]
    if one.memory is not None:
        cards.append(Card("peak memory", f"{one.memory / 1e6:.3g} MB", "beyond that of a model of one node"))
    if found.reached is not None:
        cards.append(Card("of the roofline", f"{found.reached:.0%}", "what this machine can do at best"))
    return Cards(cards)


def _bars(title: str, about: str, groups: Sequence[Group], most: int) -> Bars:
    """Bars; of long paths only the end is shown, which tells more."""
    bars = []
    for group in groups[:most]:
        roof = "" if group.reached is None else f", {group.reached:.0%} of the roof"
        name = re.sub(r"[^\s:]+", lambda found: _end(found[0]), group.name)
        bars.append(Bar(name, group.seconds * 1e3, f"{group.share:.1%}, {group.seconds * 1e3:.3g} ms{roof}"))
    rest = groups[most:]
    if rest:
        seconds, share = sum(group.seconds for group in rest), sum(group.share for group in rest)
        bars.append(
            Bar(
                "1 other" if len(rest) == 1 else f"{len(rest)} others",
                seconds * 1e3,
                f"{share:.1%}, {seconds * 1e3:.3g} ms",
            )
        )
    return Bars(title, bars, about)


def _end(name: str) -> str:
    """The end of a path of modules, behind a dot or slash."""
    if len(name) <= LONGEST:
        return name
    end = name[-LONGEST:]
    begin = re.search(r"[./](?=.)", end)
    return "…" + (end[begin.end() :] if begin else end)


def _roofline(found: Profile) -> Scatter:
    dots = [
        Dot(
            one.flops / one.bytes,
            one.reached,
            f"{one.operator} {one.name}: {one.seconds * 1e6:.3g} µs, {one.reached:.0%}",
        )
        for one in found.kernels
        if one.flops and one.bytes and one.reached
    ]
    about = (
        "A dot for each executed node; 1 is the least time at the peaks of this machine. The processor limits those to the right "
        "of the line, the memory those to the left; what caches hold may be above 1."
    )
    return Scatter(
        "Roofline",
        "operations for each byte",
        "fraction of the roof",
        dots,
        about,
        None if found.peaks is None else found.peaks.ridge,
    )


def _creation(found: Profile) -> list[Block]:
    """What the runtime did when it created the session."""
    if not found.creation.after:
        return []
    headings = ("operator", "in the model", "executed", "change")
    operators = replace(
        change(found.creation.before, found.creation.after),
        title="What the runtime made of the model",
        headings=headings,
    )
    fused = [(one.operator, one.name, ", ".join(one.nodes)) for one in found.creation.fused]
    made = Rows("What the runtime fused", ("operator", "executed as", "nodes of the model"), fused, folded=True)
    return [operators, made] if fused else [operators]


def _kernels(found: Profile) -> Rows:
    headings = ("operator", "executed as", "runs", "µs", "share", "of the roof", "module", "made by")
    rows = [
        (
            one.operator, one.name, str(one.calls), f"{one.seconds * 1e6:.1f}", f"{one.seconds / (found.seconds or 1):.1%}",
            "" if one.reached is None else f"{one.reached:.0%}", one.module, one.rule or one.made,
        )
        for one in found.kernels
    ]  # fmt: skip
    return Rows("Every executed node", headings, rows, numbers=frozenset({2, 3, 4, 5}), folded=True)
