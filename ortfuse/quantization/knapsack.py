"""Choose one option per site with the least cost, while the sum of squared errors stays under a limit.

This is the multiple-choice knapsack problem (Kellerer, Pferschy, Pisinger: Knapsack Problems, chapter 11). It has one
capacity for each output and set of inputs. The sum of costs over one option per site is minimised. The sum of squared errors
in each row is at most 1, in units of the squared limit. HiGHS solves it as an integer program (`scipy.optimize.milp`).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ortfuse.errors import OptionError

SECONDS = 5.0
"""How long the solver may take; the best choice that it has found by then counts."""

EXACT = 10
"""Up to so many sites the optimum is proved; beyond, a choice may cost `GAP` more, which is less than times are known to."""

GAP = 1e-3


@dataclass(frozen=True)
class Option:
    """One way to compute a site.

    Attributes:
        name: The name of the scheme; empty for float32.
        cost: What is minimised.
        errors: The squared error that it alone makes, a number for each row.
        seconds: The time that it takes, relative to any zero that all options of a site share.
    """

    name: str
    cost: float
    errors: tuple[float, ...]
    seconds: float = 0.0


def demand_solver() -> None:
    """Check that the solver is there.

    Raises:
        OptionError: It is not.
    """
    if importlib.util.find_spec("scipy") is None:
        raise OptionError("max_error", "choosing needs scipy, which is not installed: pip install 'ortfuse[quantize]'")


def choose(sites: Sequence[Sequence[Option]], limit: float, *, slowest: float | None = None) -> list[int]:
    """The number of the option to take at each site.

    Args:
        sites: The options of each site, of which the first makes no error.
        limit: The largest root of the sum of squared errors, in each row.
        slowest: The largest sum of the seconds; `None` for any.

    Returns:
        One index per site; all 0 if nothing else fits.
    """
    allowed = [[number for number, one in enumerate(options) if _fits(one, limit)] for options in sites]
    open_sites = [number for number, options in enumerate(allowed) if len(options) > 1]
    found = [0] * len(sites)
    if not open_sites or limit <= 0:
        return found
    if slowest is not None:
        slowest -= sum(options[0].seconds for options, some in zip(sites, allowed, strict=True) if len(some) == 1)
    options = [(site, number) for site in open_sites for number in allowed[site]]
    taken = _solved([sites[site][number] for site, number in options], [site for site, _ in options], limit, slowest)
    for (site, number), is_taken in zip(options, taken, strict=True):
        if is_taken:
            found[site] = number
    return found


def _fits(option: Option, limit: float) -> bool:
    return all(error <= limit * limit for error in option.errors)


def _solved(options: Sequence[Option], groups: Sequence[int], limit: float, slowest: float | None) -> list[bool]:
    """Choose exactly one option per group."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array

    order = {group: row for row, group in enumerate(dict.fromkeys(groups))}
    rows = [order[group] for group in groups]
    one_each = csr_array((np.ones(len(groups)), (rows, range(len(groups)))), shape=(len(order), len(groups)))
    constraints: list[Any] = [LinearConstraint(one_each, 1, 1)]
    errors = np.array([option.errors for option in options]).T / limit**2
    if errors.size:
        constraints.append(LinearConstraint(errors, -np.inf, 1.0))
    if slowest is not None:
        seconds = np.array([option.seconds for option in options])
        scale = max(float(np.abs(seconds).sum()), abs(slowest), 1e-12)
        constraints.append(LinearConstraint(seconds[np.newaxis] / scale, -np.inf, slowest / scale))
    costs = np.array([option.cost for option in options])
    solved = milp(
        costs / max(float(np.abs(costs).max()), 1e-12),
        integrality=np.ones(len(options)),
        bounds=Bounds(0, 1),
        constraints=constraints,
        options={"presolve": False, "time_limit": SECONDS, "mip_rel_gap": 0.0 if len(order) <= EXACT else GAP},
    )
    if solved.x is None:
        return [number == 0 or groups[number - 1] != group for number, group in enumerate(groups)]
    return [bool(share > 0.5) for share in solved.x]


def total(sites: Sequence[Sequence[Option]], taken: Sequence[int]) -> Option:
    """The total cost and errors of a choice: the sums of its options."""
    parts = [options[number] for options, number in zip(sites, taken, strict=True)]
    errors = np.sum([part.errors for part in parts], axis=0) if parts else ()
    return Option("", sum(part.cost for part in parts), tuple(map(float, errors)), sum(part.seconds for part in parts))


def linear_error(sites: Sequence[Sequence[Option]], taken: Sequence[int]) -> float:
    """The sum of the errors themselves, which the error of the whole cannot exceed as long as it is linear in them."""
    parts = [np.sqrt(options[number].errors) for options, number in zip(sites, taken, strict=True)]
    return float(np.sum(parts, axis=0).max(initial=0.0)) if parts else 0.0
