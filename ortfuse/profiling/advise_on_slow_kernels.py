"""Advise on kernels that no rewrite improves, by their bottleneck: arithmetic, memory or dispatch."""

from __future__ import annotations

from collections.abc import Sequence

from ortfuse.ir.traits import CONTRACTS
from ortfuse.profiling.kernels import Kernel, reached

NEAR = 0.5
"""The fraction of the roof from which on kernels cannot become much faster."""

FAR = 0.25
"""The fraction of the roof below which a kernel is far from what the machine can do."""

BRIEF = 1e-4
"""The seconds of a kernel below which waking several threads takes a large part of them."""

_BODIES = frozenset({"If", "Loop", "Scan", "SequenceMap"})

_PRODUCTS = CONTRACTS | {"Conv", "Attention"}
"""Parts of the names of operators that read weights, or keys and values, for each sample."""


def of_products(kernels: Sequence[Kernel], legal: str, threads: int) -> str:
    """Advice on kernels that the processor limits.

    Args:
        kernels: The kernels; the fraction of the roof that they reach is known.
        legal: The schemes of lower precision that are legal there, in words; empty if none are known.
        threads: Threads per operator; 0 if the runtime chose.
    """
    fraction = reached(kernels) or 0.0
    lower = "`ortfuse quantize --max-error`" + (f" (legal there: {legal})" if legal else "")
    if fraction >= NEAR:
        return f"they run at what the machine can do; only lower precision is faster: {lower}"
    if fraction >= FAR:
        return f"a larger batch may bring them closer to the peak; otherwise lower precision is faster: {lower}"
    if _each(kernels) >= BRIEF:
        return (
            "the runtime's kernel is slow at these sizes (few channels in a group, narrow matrices, or a type without a fast "
            f"kernel): a larger batch may help, and lower precision: {lower}"
        )
    fewer = "" if threads == 1 else ", or too many threads for them"
    return f"sizes too small for its kernel{fewer}: try a larger batch{'' if threads == 1 else ', and `--threads 1`'}"


def of_others(operator: str, kernels: Sequence[Kernel], *, explained: bool) -> str:
    """Advice on kernels of one operator that no other advice is about.

    Args:
        operator: The operator.
        kernels: Its kernels.
        explained: Whether it is known that `ortfuse optimize` has no rule for them.
    """
    rule = "`ortfuse optimize` has no rule for them" if explained else "`ortfuse optimize` may have a rule for them"
    if operator in _BODIES:
        return f"starting its body once for each iteration takes this time; {rule}: fewer iterations do more in each"
    fraction = reached(kernels)
    memory = fraction is not None and all(one.bound == "memory" for one in kernels)
    if memory and any(part in operator for part in _PRODUCTS):
        return (
            "it waits for memory, since it does little with each number that it reads: a larger batch reads weights once for "
            "more work, and `ortfuse quantize --max-error` makes them smaller"
        )
    if memory and fraction is not None and fraction >= NEAR:
        lower = "`ortfuse convert` to float16, `ortfuse quantize`"
        return f"it runs at the speed of memory; {rule}: only fewer bytes are faster ({lower})"
    if memory:
        why = "as functions such as exp or gathering element by element do"
        return f"its kernel takes longer than memory does, {why}; {rule}"
    return f"its kernel takes this time, and how much it could take at best is not known; {rule}"


def _each(kernels: Sequence[Kernel]) -> float:
    """The seconds of one execution, the mean."""
    return sum(one.seconds for one in kernels) / max(1, sum(one.calls for one in kernels))
