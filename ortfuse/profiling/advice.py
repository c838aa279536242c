"""What takes the time of a model and can be helped, in words: from the profile, near misses and rungs of lower precision."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from ortfuse.explanation import Explanation
from ortfuse.graph.traits import MOVES
from ortfuse.profiling.kernels import Kernel, reached
from ortfuse.profiling.result import Bottleneck, Profile

LEAST = 0.02
"""What takes a smaller part of the time is not named."""

MUCH = 0.1
"""The part of the time from which on an operator by itself is a bottleneck."""

NEAR = 0.5
"""The fraction of the roof from which on kernels cannot become much faster."""

FAR = 0.25
"""The fraction of the roof below which a kernel is far from what the machine can do."""

SHORT = 10e-6
"""The seconds below which handing over to a kernel takes about as long as the kernel itself."""

MOST_MISSES = 5

_FORCED = {
    "ReorderInput": "operators between convolutions that have no kernel for blocks of channels force them",
    "ReorderOutput": "operators between convolutions that have no kernel for blocks of channels force them",
    "Cast": "they stand around operators without a kernel in the type of the model; `ortfuse convert` decides where types change",
    "Transpose": "the runtime moved them there; `ortfuse optimize` moves transpositions over whole regions",
}


def bottlenecks(
    profile: Profile, explanation: Explanation | None = None, rungs: Mapping[str, Collection[str]] | None = None
) -> tuple[Bottleneck, ...]:
    """The bottlenecks of a model, the largest first.

    Args:
        profile: What was measured.
        explanation: What `ortfuse optimize` would fuse in the model, and what it nearly would; `None` if that is not known.
        rungs: The rungs of lower precision that are legal at nodes, by their names.
    """
    shares = _Shares(profile.kernels)
    found = [*_short(profile), *_inserted(shares), *_moves(shares), *_products(shares, rungs or {})]
    if explanation is not None:
        found += [*_to_fuse(shares, explanation), *_missed(shares, explanation)]
    return tuple(sorted((one for one in found if one.share >= LEAST), key=lambda one: -one.share))


class _Shares:
    """The kernels, and what part of their time some of them take."""

    def __init__(self, kernels: Sequence[Kernel]) -> None:
        self.kernels = kernels
        self._total = sum(one.seconds for one in kernels) or 1.0

    def of(self, kernels: Iterable[Kernel]) -> float:
        """The part that these take."""
        return sum(one.seconds for one in kernels) / self._total

    def standing_for(self, nodes: Collection[str]) -> list[Kernel]:
        """The kernels that stand for one of these nodes and that no rule has made yet."""
        names = set(nodes)
        return [one for one in self.kernels if not one.rule and not names.isdisjoint(one.nodes)]


def _to_fuse(shares: _Shares, explanation: Explanation) -> Iterator[Bottleneck]:
    """What `ortfuse optimize` would fuse, by family."""
    families: dict[str, list[Collection[str]]] = {}
    for site in explanation.fused:
        families.setdefault(site.rule.partition(".")[0], []).append(site.nodes)
    for family, sites in families.items():
        here = [nodes for nodes in sites if shares.standing_for(nodes)]
        kernels = shares.standing_for({name for nodes in here for name in nodes})
        what = f"{family}: {_counted(len(here), 'site')} in {_counted(len(kernels), 'kernel')}"
        yield Bottleneck(what, shares.of(kernels), "`ortfuse optimize` fuses them")


def _missed(shares: _Shares, explanation: Explanation) -> Iterator[Bottleneck]:
    """Where a rule nearly applied, those that take most time."""
    found: dict[tuple[str, str], list[Collection[str]]] = {}
    for site in explanation.missed:
        found.setdefault((site.family, site.refusal.remedy), []).append(site.nodes)
    made = []
    for (family, remedy), sites in found.items():
        share = shares.of(shares.standing_for({name for nodes in sites for name in nodes}))
        made.append(
            Bottleneck(
                f"{family}: {_counted(len(sites), 'near miss', 'near misses')}", share, f"it would match if {remedy}"
            )
        )
    yield from sorted(made, key=lambda one: -one.share)[:MOST_MISSES]


def _products(shares: _Shares, rungs: Mapping[str, Collection[str]]) -> Iterator[Bottleneck]:
    """Operators that the processor limits, by how close they are to what it can do."""
    for operator, kernels in _by_operator(shares.kernels, "compute"):
        fraction = reached(kernels)
        if fraction is None or shares.of(kernels) < MUCH:
            continue
        names = Counter(rung for one in kernels for node in one.nodes for rung in rungs.get(node, ()))
        legal = ", ".join(f"{name} at {count}" for name, count in names.most_common(3))
        lower = "`ortfuse quantize --max-error`" + (f" (legal there: {legal})" if legal else "")
        if fraction >= NEAR:
            remedy = f"they run at what the machine can do; only lower precision is faster: {lower}"
        elif fraction < FAR:
            remedy = (
                "sizes too small for its kernel, or too many threads for them: try a larger batch, and `--threads 1`"
            )
        else:
            remedy = f"a larger batch may bring them closer to the peak; otherwise lower precision is faster: {lower}"
        yield Bottleneck(f"{operator}, {fraction:.0%} of the peak of this machine", shares.of(kernels), remedy)


def _by_operator(kernels: Iterable[Kernel], bound: str) -> Iterable[tuple[str, list[Kernel]]]:
    found: dict[str, list[Kernel]] = {}
    for one in kernels:
        if one.bound == bound:
            found.setdefault(one.operator, []).append(one)
    return found.items()


def _inserted(shares: _Shares) -> Iterator[Bottleneck]:
    """What the runtime inserted."""
    found: dict[str, list[Kernel]] = {}
    for one in shares.kernels:
        if one.made == "inserted":
            found.setdefault(_FORCED.get(one.operator, "the runtime needs them between its providers"), []).append(one)
    for remedy, kernels in found.items():
        names = Counter(one.operator for one in kernels)
        what = " and ".join(f"{count} {name}" for name, count in names.items())
        yield Bottleneck(f"{what} that the runtime inserted", shares.of(kernels), remedy)


def _moves(shares: _Shares) -> Iterator[Bottleneck]:
    """What only moves elements."""
    kernels = [one for one in shares.kernels if one.operator in MOVES and one.made != "inserted"]
    names = ", ".join(dict.fromkeys(one.operator for one in sorted(kernels, key=lambda one: -one.seconds)))
    optimised = any(one.rule for one in shares.kernels)
    remedy = (
        "they are left after `ortfuse optimize`, which knows no form with fewer of them"
        if optimised
        else "`ortfuse optimize` merges them, and moves them where they cost least"
    )
    yield Bottleneck(f"moving elements: {names}", shares.of(kernels), remedy)


def _short(profile: Profile) -> Iterator[Bottleneck]:
    """Kernels shorter than handing over to them, together with that.

    It is what a run without the profiler takes besides the others, but not more than under the profiler: where times scatter,
    runs are longer than the medians of kernels add up to, and nothing hands over in that time. The profiler lengthens each kernel
    by about as much as the run by all of them, but by no more than a short one takes: the rest is scatter.
    """
    p50 = profile.timing.p50_ms * 1e-3
    lengthened = (profile.run_seconds - p50) / max(1, sum(one.calls for one in profile.kernels))
    lengthened = min(SHORT, max(0.0, lengthened))
    own = [(one, one.seconds - lengthened * one.calls) for one in profile.kernels]
    calls = sum(one.calls for one, seconds in own if seconds < SHORT * one.calls)
    long = sum(seconds for one, seconds in own if seconds >= SHORT * one.calls)
    besides = profile.seconds - long + profile.between
    share = min(max(0.0, 1 - long / p50), besides / ((besides + long) or 1.0))
    fewer = "" if any(one.rule for one in profile.kernels) else "fewer nodes (`ortfuse optimize`), "
    remedy = f"{fewer}more work for each (a larger batch), and `--threads 1` if all are short"
    runs = f"{_counted(calls, 'run')} of kernels under {SHORT * 1e6:.0f} µs, and " if calls else ""
    yield Bottleneck(f"{runs}handing over from kernel to kernel", share, remedy)


def _counted(number: int, one: str, several: str = "") -> str:
    return f"{number} {one if number == 1 else several or one + 's'}"
