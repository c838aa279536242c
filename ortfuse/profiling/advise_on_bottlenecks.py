"""Advise on the bottlenecks of a model, from its profile, near misses and quantisation schemes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ortfuse.ir.traits import MOVES
from ortfuse.profiling.advise_on_slow_kernels import of_others, of_products
from ortfuse.profiling.kernels import Kernel, reached
from ortfuse.profiling.result import Bottleneck, Denormals, Profile
from ortfuse.runtime.bench.number_format import digits
from ortfuse.runtime.session_settings.recommendations import DENORMALS
from ortfuse.verification.explanation import Explanation

LEAST = 0.02
"""The least share of the time that is named."""

MUCH = 0.05
"""The part of the time from which on an operator by itself is a bottleneck."""

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
    profile: Profile, explanation: Explanation | None = None, schemes: Mapping[str, Collection[str]] | None = None
) -> tuple[Bottleneck, ...]:
    """The bottlenecks of a model: denormals first, then the largest; every operator with a large part of the time is in one.

    Args:
        profile: What was measured.
        explanation: What `ortfuse optimize` would fuse in the model, and what it nearly would; `None` if that is not known.
        schemes: The schemes of lower precision that are legal at nodes, by their names.
    """
    shares = _Shares(profile.kernels)
    slow = [_of_denormals(profile.denormals, shares)] if profile.denormals is not None else []
    named = {one.name for row in slow for one in row.kernels}
    others = _Shares([one for one in profile.kernels if one.name not in named], shares.total)
    found = [*_short(profile), *_inserted(others), *_moves(others), *_products(others, schemes or {}, profile.threads)]
    if explanation is not None:
        found += [*_to_fuse(shares, explanation), *_missed(shares, explanation)]
    found = [one for one in found if one.share >= LEAST]
    named |= {one.name for row in found for one in row.kernels}
    rest = _Shares([one for one in profile.kernels if one.name not in named], shares.total)
    found += _others(rest, explained=explanation is not None)
    rows = [*slow, *sorted(found, key=lambda one: -one.share)]
    return tuple(Bottleneck(one.what, one.share, one.remedy) for one in rows)


@dataclass(frozen=True)
class _Row:
    """A bottleneck with the kernels that it is about."""

    what: str
    share: float
    remedy: str
    kernels: Sequence[Kernel] = ()


class _Shares:
    """The kernels, and what part of their time some of them take."""

    def __init__(self, kernels: Sequence[Kernel], total: float = 0.0) -> None:
        """Kernels whose shares are of `total` seconds; by default of what they take themselves."""
        self.kernels = kernels
        self.total = total or sum(one.seconds for one in kernels) or 1.0

    def of(self, kernels: Iterable[Kernel]) -> float:
        """The part that these take."""
        return sum(one.seconds for one in kernels) / self.total

    def standing_for(self, nodes: Collection[str]) -> list[Kernel]:
        """The kernels that stand for one of these nodes and that no rule has made yet."""
        names = set(nodes)
        return [one for one in self.kernels if not one.rule and not names.isdisjoint(one.nodes)]


def _to_fuse(shares: _Shares, explanation: Explanation) -> Iterator[_Row]:
    """The sites that `ortfuse optimize` would fuse, by family."""
    families: dict[str, list[Collection[str]]] = {}
    for site in explanation.fused:
        families.setdefault(site.rule.partition(".")[0], []).append(site.nodes)
    for family, sites in families.items():
        here = [nodes for nodes in sites if shares.standing_for(nodes)]
        kernels = shares.standing_for({name for nodes in here for name in nodes})
        what = f"{family}: {_counted(len(here), 'site')} in {_counted(len(kernels), 'kernel')}"
        yield _Row(what, shares.of(kernels), "`ortfuse optimize` fuses them", kernels)


def _missed(shares: _Shares, explanation: Explanation) -> Iterator[_Row]:
    """The near misses that take most time."""
    found: dict[tuple[str, str], list[Collection[str]]] = {}
    for site in explanation.missed:
        found.setdefault((site.family, site.refusal.remedy), []).append(site.nodes)
    made = []
    for (family, remedy), sites in found.items():
        kernels = shares.standing_for({name for nodes in sites for name in nodes})
        what = f"{family}: {_counted(len(sites), 'near miss', 'near misses')}"
        made.append(_Row(what, shares.of(kernels), f"it would match if {remedy}", kernels))
    yield from sorted(made, key=lambda one: -one.share)[:MOST_MISSES]


def _of_denormals(found: Denormals, shares: _Shares) -> _Row:
    """Numbers below the smallest normal one, by what kernels lose by them."""
    names = set(found.kernels)
    kernels = [one for one in shares.kernels if one.name in names]
    operators = ", ".join(f"{count} {name}" for name, count in Counter(one.operator for one in kernels).items())
    took = sum(one.seconds for one in kernels)
    where = f"; {found.source}" if found.source else ""
    safe = {
        None: "",
        "": "; no operator of the model can tell them from zero",
    }.get(found.seen_by, f"; {found.seen_by} can tell them from zero: compare the outputs")
    return _Row(
        f"denormals, numbers below 1.2e-38, slow down {operators}: {digits(took / max(found.seconds, 1e-9))} times as long as "
        f"with zeros{where}",
        (took - found.seconds) / shares.total,
        f'open the session with `session.set_denormal_as_zero`: `ortfuse.session(path, {{"{DENORMALS}": "1"}})`{safe}',
        kernels,
    )


def _products(shares: _Shares, schemes: Mapping[str, Collection[str]], threads: int) -> Iterator[_Row]:
    """Operators that the processor limits, by how close they are to what it can do."""
    for operator, kernels in _by_operator(one for one in shares.kernels if one.bound == "compute"):
        fraction = reached(kernels)
        if fraction is None or shares.of(kernels) < MUCH:
            continue
        names = Counter(scheme for one in kernels for node in one.nodes for scheme in schemes.get(node, ()))
        legal = ", ".join(f"{name} at {count}" for name, count in names.most_common(3))
        what = f"{operator}, {fraction:.0%} of the peak of this machine"
        yield _Row(what, shares.of(kernels), of_products(kernels, legal, threads), kernels)


def _others(shares: _Shares, *, explained: bool) -> Iterator[_Row]:
    """Operators of which nothing else is said."""
    for operator, kernels in _by_operator(shares.kernels):
        if shares.of(kernels) >= MUCH:
            count = _counted(len(kernels), "kernel")
            yield _Row(
                f"{operator}: {count}", shares.of(kernels), of_others(operator, kernels, explained=explained), kernels
            )


def _by_operator(kernels: Iterable[Kernel]) -> Iterable[tuple[str, list[Kernel]]]:
    found: dict[str, list[Kernel]] = {}
    for one in kernels:
        found.setdefault(one.operator, []).append(one)
    return found.items()


def _inserted(shares: _Shares) -> Iterator[_Row]:
    """The nodes that the runtime inserted."""
    found: dict[str, list[Kernel]] = {}
    for one in shares.kernels:
        if one.origin == "inserted":
            found.setdefault(_FORCED.get(one.operator, "the runtime needs them between its providers"), []).append(one)
    for remedy, kernels in found.items():
        names = Counter(one.operator for one in kernels)
        what = " and ".join(f"{count} {name}" for name, count in names.items())
        yield _Row(f"{what} that the runtime inserted", shares.of(kernels), remedy, kernels)


def _moves(shares: _Shares) -> Iterator[_Row]:
    """The nodes that only move elements."""
    kernels = [one for one in shares.kernels if one.operator in MOVES and one.origin != "inserted"]
    names = ", ".join(dict.fromkeys(one.operator for one in sorted(kernels, key=lambda one: -one.seconds)))
    optimised = any(one.rule for one in shares.kernels)
    remedy = (
        "they are left after `ortfuse optimize`, which knows no form with fewer of them"
        if optimised
        else "`ortfuse optimize` merges them, and moves them where they cost least"
    )
    yield _Row(f"moving elements: {names}", shares.of(kernels), remedy, kernels)


def _short(profile: Profile) -> Iterator[_Row]:
    """Kernels shorter than handing over to them, together with that.

    It is what a run without the profiler takes besides the others, but not more than under the profiler: where times scatter,
    runs are longer than the medians of kernels add up to, and nothing hands over in that time. The profiler lengthens each kernel
    by about as much as the run by all of them, but by no more than a short one takes: the rest is scatter.
    """
    p50 = profile.timing.p50_ms * 1e-3
    lengthened = (profile.run_seconds - p50) / max(1, sum(one.calls for one in profile.kernels))
    lengthened = min(SHORT, max(0.0, lengthened))
    own = [(one, one.seconds - lengthened * one.calls) for one in profile.kernels]
    short = [one for one, seconds in own if seconds < SHORT * one.calls]
    calls = sum(one.calls for one in short)
    long = sum(seconds for one, seconds in own if seconds >= SHORT * one.calls)
    besides = profile.seconds - long + profile.between_seconds
    share = min(max(0.0, 1 - long / p50), besides / ((besides + long) or 1.0))
    fewer = "" if any(one.rule for one in profile.kernels) else "fewer nodes (`ortfuse optimize`), "
    threads = "" if profile.threads == 1 else ", and `--threads 1` if all are short"
    remedy = f"{fewer}more work for each (a larger batch){threads}"
    runs = f"{_counted(calls, 'run')} of kernels under {SHORT * 1e6:.0f} µs, and " if calls else ""
    yield _Row(f"{runs}handing over from kernel to kernel", share, remedy, short)


def _counted(number: int, one: str, several: str = "") -> str:
    return f"{number} {one if number == 1 else several or one + 's'}"
