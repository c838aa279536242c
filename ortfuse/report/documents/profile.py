"""The document of `ortfuse profile`: the time of a model by operator, block, module and rule."""

from __future__ import annotations

from dataclasses import replace

from ortfuse.profiling import Creation, Profile
from ortfuse.report.document import Bar, Block, Card, Cards, Chart, Document, Dot, Notes, Rows, Scatter
from ortfuse.report.documents.operators import change
from ortfuse.report.profile_files import TITLES, threads_in_words
from ortfuse.runtime.bench.number_format import digits

MOST_GROUPS = 16
"""The groups that a table has; --json has them all."""

MOST_CHANGES = 12
"""The operators that session creation changes, as far as the terminal names them."""

WORTH_A_WORD = 0.95
"""Times under the profiler that are scaled by less than this are said to be."""

_SHARES = (
    "Shares are of the time of all executed nodes; what lies between them counts for its share of a run. A kernel is a node that "
    "the runtime executes. One node can be part of several rows, so that they may add up to more than 100 %."
)

_ROOF = (
    "The time of each in a run, its share, its nodes, how often they run, and how near they come to the roof: the least "
    "time that this machine could take for their work."
)

_VIEWS = {
    "operator": "The operators that the runtime executes.",
    "block": "What was made of several nodes; blocks that are alike are added up.",
    "module": "The modules of the network that was exported.",
    "role": "Layers that are alike are added up, under * for their numbers.",
    "rule": "Rules of ortfuse, the runtime when it created the session, or the model.",
}


def profile_document(model: str, found: Profile) -> Document:
    """Show where the time of a model goes.

    Args:
        model: What the model is called.
        found: Its profile.
    """
    scale = found.scale * 1e3
    blocks: list[Block] = [_cards(found), Notes("A run", _times(found))]
    blocks += [_view(found, view, about) for view, about in _VIEWS.items()]
    blocks.append(Notes("At session creation", _creation_lines(found.creation, scale)))
    if found.notes:
        blocks.append(Notes("What to know about the numbers", found.notes, on="page"))
    if found.bottlenecks:
        rows = [(one.description, f"{one.share:.1%}", one.remedy) for one in found.bottlenecks]
        blocks.append(
            Rows(
                "What takes the time, and what can be done", ("what", "share", "remedy"), rows, _SHARES, frozenset({1})
            )
        )
    blocks.append(Notes("", found.notes, "note: ", "yellow", on="terminal"))
    blocks += [_roofline(found), *_creation(found), _kernels(found)]
    return Document(f"Where the time of {model} goes", _summary(found), blocks)


def _summary(found: Profile) -> str:
    first = found.by("operator")[:3]
    most = ", ".join(f"{group.name} ({group.share:.0%})" for group in first)
    count = f"{found.threads} thread{'s' if found.threads > 1 else ''}"
    threads = count if found.threads else "as many threads as the runtime chooses"
    return (
        f"A run takes {digits(found.timing.p50_ms)} ms at {found.inputs} with {threads}. Of the time of its nodes, the largest "
        f"shares go to {most or 'nothing'}."
    )


def _times(found: Profile) -> list[str]:
    """The latency, the parts of a run, and the roof."""
    one, scale = found.timing, found.scale * 1e3
    memory = "" if one.memory is None else f", peak memory {one.memory / 1e6:.1f} MB"
    scaled = f", a factor of {1 / found.scale:.2f}, which is taken out here" if found.scale < WORTH_A_WORD else ""
    lines = [
        f"latency at {found.inputs}: p50 {one.p50_ms:.3f} ms, p95 {one.p95_ms:.3f} ms, {one.throughput:.4g} runs/s "
        f"({one.rounds} rounds, {threads_in_words(found.threads)}); session {one.session_ms:.0f} ms{memory}",
        f"of a run {len(found.kernels)} kernels take {found.seconds * scale:.3f} ms, and what lies between them "
        f"{found.between_seconds * scale:.3f} ms (under the profiler a run takes {found.run_seconds * 1e3:.3f} ms{scaled})",
    ]
    if found.peaks is not None and found.reached is not None:
        peaks = found.peaks
        at = "at what this machine can do" if found.reached >= 1 else f"{found.reached:.0%} of what this machine can do"
        lines.append(
            f"roofline: {at} ({peaks.flops / 1e9:.3g} GFLOP/s in a product of "
            f"matrices, {peaks.bandwidth / 1e9:.3g} GB/s in a copy; {peaks.processor})"
        )
    return lines


def _view(found: Profile, view: str, about: str) -> Rows:
    """The times of groups in milliseconds, those beyond the first together."""
    groups = found.blocks if view == "block" else found.by(view)
    scale = found.scale * 1e3
    rows = [
        (
            one.name, digits(one.seconds * scale), f"{one.share:.1%}", str(one.kernels), str(one.calls),
            "" if one.roofline_fraction is None else _whole(one.roofline_fraction),
        )
        for one in groups[:MOST_GROUPS]
    ]  # fmt: skip
    bars, styles = [Bar(one.seconds) for one in groups[:MOST_GROUPS]], [""] * len(rows)
    if rest := groups[MOST_GROUPS:]:
        seconds, share = sum(one.seconds for one in rest), sum(one.share for one in rest)
        kernels, calls = sum(one.kernels for one in rest), sum(one.calls for one in rest)
        others = f"{len(rest)} other{'s' * (len(rest) > 1)}"
        rows.append((others, digits(seconds * scale), f"{share:.1%}", str(kernels), str(calls), ""))
        bars.append(Bar(seconds))
        styles.append("dim")
    title = TITLES[view]
    if view == "operator":
        about = f"{about} {_ROOF}{_scaled(found)}"
    headings = (title.removeprefix("By "), "ms", "share", "kernels", "runs", "of the roof")
    return Rows(title, headings, rows, about, frozenset(range(1, 6)), styles=styles, chart=Chart(bars))


def _creation_lines(found: Creation, scale: float) -> list[str]:
    """The runtime's changes at session creation, in words."""
    if not found.after:
        return []
    before, after = sum(found.before.values()), sum(found.after.values())
    changes = list(found.changes().items())
    listed = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in changes[:MOST_CHANGES])
    more = f" and {len(changes) - MOST_CHANGES} other operators" if len(changes) > MOST_CHANGES else ""
    lines = [
        f"at session creation the runtime makes {after} nodes of {before}:",
        f"  operators: {listed or 'all as in the model'}{more}",
    ]
    if found.inserted:
        inserted = ", ".join(f"{count} {name}" for name, count in found.inserted.items())
        lines.append(f"  inserted: {inserted}, which take {found.inserted_seconds * scale:.3f} ms a run")
    if found.fused:
        counts: dict[str, list[int]] = {}
        for one in found.fused:
            counts.setdefault(one.operator, []).append(len(one.nodes))
        fused = ", ".join(f"{len(sizes)} {name} of {sum(sizes)} nodes" for name, sizes in counts.items())
        lines.append(f"  fused by the runtime: {fused}")
    return lines


def _cards(found: Profile) -> Cards:
    one = found.timing
    cards = [
        Card("median latency", f"{digits(one.p50_ms)} ms", f"{one.rounds} rounds"),
        Card("95 % of the runs within", f"{digits(one.p95_ms)} ms"),
        Card("throughput", f"{digits(one.throughput)}/s", "runs, one after the other"),
        Card("session creation", f"{digits(one.session_ms)} ms"),
    ]
    if one.memory is not None:
        cards.append(Card("peak memory", f"{digits(one.memory / 1e6)} MB", "beyond that of a model of one node"))
    if found.reached is not None:
        cards.append(Card("of the roof", _whole(found.reached), "what this machine can do at best"))
    return Cards(cards)


def _scaled(found: Profile) -> str:
    """How milliseconds under the profiler become those of the latency."""
    if found.scale >= 1:
        return ""
    return (
        f" Under the profiler a run takes {digits(found.run_seconds * 1e3)} ms; milliseconds here are multiplied by "
        f"{digits(found.scale)}, so that they are parts of the latency without it."
    )


def _whole(share: float) -> str:
    return "<1%" if 0 < share < 0.005 else f"{share:.0%}"


def _roofline(found: Profile) -> Scatter:
    longest = max((one.seconds for one in found.kernels), default=1.0) or 1.0
    dots = [
        Dot(
            one.flops / one.bytes,
            one.reached,
            f"{one.operator} {one.name}: {digits(one.seconds * found.scale * 1e6)} µs, {_whole(one.reached)} of the roof",
            weight=one.seconds / longest,
        )
        for one in found.kernels
        if one.flops and one.bytes and one.reached
    ]
    peaks = found.peaks
    about = (
        "A dot for each executed node, its area by its time; 1 is the least time at the peaks of this machine. The processor "
        "limits those to the right of the line, the memory those to the left; what is faster than these peaks counts as at them."
    )
    if peaks is not None:
        products, copies = f"{peaks.flops / 1e9:.3g} GFLOP/s", f"{peaks.bandwidth / 1e9:.3g} GB/s"
        about += f" The peaks: {products} in a product of matrices, {copies} in a copy."
    return Scatter(
        "Roofline",
        "operations for each byte",
        "fraction of the roof",
        dots,
        about,
        None if peaks is None else peaks.ridge,
        "" if peaks is None else f"{peaks.ridge:.3g} operations for each byte",
        level=1.0,
    )


def _creation(found: Profile) -> list[Block]:
    """The runtime's changes at session creation."""
    if not found.creation.after:
        return []
    headings = ("operator", "in the model", "executed", "change")
    operators = replace(
        change(found.creation.before, found.creation.after),
        title="What the runtime made of the model",
        headings=headings,
        on="page",
    )
    fused = [(one.operator, one.name, ", ".join(one.nodes)) for one in found.creation.fused]
    made = Rows(
        "What the runtime fused", ("operator", "executed as", "nodes of the model"), fused, folded=True, on="page"
    )
    return [operators, made] if fused else [operators]


def _kernels(found: Profile) -> Rows:
    microseconds = 1e6 * found.scale
    headings = ("operator", "executed as", "runs", "µs", "share", "of the roof", "module", "made by")
    rows = [
        (
            one.operator, one.name, str(one.calls), f"{one.seconds * microseconds:.1f}",
            f"{one.seconds / (found.seconds or 1):.1%}", "" if one.reached is None else _whole(one.reached),
            one.module, one.rule or one.origin,
        )
        for one in found.kernels
    ]  # fmt: skip
    return Rows("Every executed node", headings, rows, numbers=frozenset({2, 3, 4, 5}), folded=True, on="page")
