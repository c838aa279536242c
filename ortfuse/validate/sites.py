"""Translation validation: every rewrite of a model is checked where it happens, on its own nodes with its own weights.

A model too large to be run twice, or at all, is checked this way too: what is run is one rewrite at a time, before and
after, on generated inputs of several sizes (see `ortfuse.validate.region`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from ortfuse.errors import OrtfuseError
from ortfuse.rewrite import Site
from ortfuse.validate.experiments import experiments
from ortfuse.validate.inputs import Inputs, InputSpec
from ortfuse.validate.region import sides
from ortfuse.validate.verify import Judged, Verdict, judge

QUIET = 2.0**-6
"""What the numbers of one run are scaled by: their variance then is of the size of usual epsilons, or a few times that."""

State = Literal["equal", "undone", "unchecked"]


@dataclass(frozen=True)
class SiteCheck(Judged):
    """One rewrite that was checked.

    Attributes:
        rule: The rule.
        site: The value at the root.
        state: Whether both sides agree, the rewrite was undone because they do not, or they could not be compared.
        verdict: The comparisons, `None` if there are none.
        reason: What is wrong, or why nothing could be compared.
    """

    rule: str
    site: str
    state: State
    verdict: Verdict | None = None
    reason: str = ""

    def text(self) -> str:
        """The rule, the site, and what is wrong with the errors of both sides."""
        errors = self.errors()
        return f"{self.rule} at '{self.site}': {self.reason or 'equal'}" + (f"; {errors}" if errors else "")

    def to_dict(self) -> dict[str, Any]:
        """The check as data for JSON."""
        return {
            "rule": self.rule,
            "site": self.site,
            "state": self.state,
            "reason": self.reason,
            "error_before": self.error_before,
            "error_after": self.error_after,
            "verdict": self.verdict.to_dict() if self.verdict else None,
        }


@dataclass
class SiteChecks:
    """Checks every rewrite before it is final and objects to those that are wrong; an inspector for the rewriter.

    A rewrite that cannot be checked is let through, and reported as such. One that was refused is not tried again.

    Attributes:
        tolerance: Allowed relative error; by default what `ortfuse.validate.compare` says.
        seed: Of the generated inputs.
        progress: Told in a few words what is going on.
        found: The last check of each rule at each site.
    """

    tolerance: float | None = None
    seed: int = 0
    progress: Callable[[str], None] = lambda text: None
    found: dict[tuple[str, str], SiteCheck] = field(default_factory=dict)

    def objection(self, site: Site) -> str | None:
        """What is wrong with a rewrite, `None` if nothing is or it cannot be checked."""
        key = (site.rule.name, site.name)
        known = self.found.get(key)
        if known is None or known.state != "undone":
            self.progress(f"checking {site.rule.name} ({len(self.found) + 1})")
            known = self.found[key] = check_site(site, tolerance=self.tolerance, seed=self.seed)
        return known.reason if known.state == "undone" else None

    def of_state(self, state: State) -> list[SiteCheck]:
        """The checks that ended in this state."""
        return [check for check in self.found.values() if check.state == state]

    def summary(self) -> str:
        """All checks in a line."""
        return summary(self.found.values())


def summary(checks: Iterable[SiteCheck]) -> str:
    """How many rewrites were checked, and how that ended."""
    counts = {"equal": 0, "undone": 0, "unchecked": 0}
    for check in checks:
        counts[check.state] += 1
    text = f"{counts['equal'] + counts['undone']} rewrites checked where they happen, {counts['equal']} equal"
    text += f", {counts['undone']} wrong and undone" if counts["undone"] else ""
    return text + (f", {counts['unchecked']} not checked" if counts["unchecked"] else "")


def check_site(site: Site, *, tolerance: float | None = None, seed: int = 0) -> SiteCheck:
    """Run both sides of a rewrite on generated inputs and compare them, the old one with float64 too.

    One run is on numbers so small that the epsilon of a normalisation matters.
    """
    try:
        both = sides(site)
        found, notes = experiments(both.before, seed=seed, specs=both.inputs, also=_quieter(both.inputs))
        verdict = Verdict(judge(found, both.after, tolerance, levels=(False,)), notes)
    except OrtfuseError as error:
        return SiteCheck(site.rule.name, site.name, "unchecked", reason=str(error))
    except Exception as error:
        # A small model that trips up a converter or the runtime must not cost the user the large one.
        reason = f"the check itself failed: {type(error).__name__}: {error}"
        return SiteCheck(site.rule.name, site.name, "unchecked", reason=reason)
    if verdict.ok:
        return SiteCheck(site.rule.name, site.name, "equal", verdict)
    return SiteCheck(site.rule.name, site.name, "undone", verdict, f"the check at the site failed: {verdict.summary()}")


def _quieter(specs: Sequence[InputSpec]) -> Callable[[Inputs], Inputs]:
    """Makes of inputs the same with smaller floating-point numbers; masks stay."""
    loud = {spec.name for spec in specs if spec.dtype.is_floating_point() and spec.role.mask is None}

    def make(inputs: Inputs) -> Inputs:
        return {name: (array * QUIET).astype(array.dtype) if name in loud else array for name, array in inputs.items()}

    return make
