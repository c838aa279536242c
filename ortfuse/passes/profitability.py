"""The choice between several legal forms of the same thing: by what the user pinned, what was measured, what is preferred."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ortfuse.errors import PipelineError
from ortfuse.graph.edit import Edit
from ortfuse.pattern import Match, Pattern
from ortfuse.refusal import Refusal, Subject, refuse
from ortfuse.rewrite import Rule
from ortfuse.rewrite.rule import operators_of
from ortfuse.targets import CostTable, Estimate

STANDARD = "ai.onnx."

LEAVE = "none"
"""Pinned, it says that sites of a family stay as they are."""


class Meter(Protocol):
    """Measures rewrites where they happen."""

    def measure(self, edit: Edit) -> Estimate | None:
        """How much faster the new nodes run than the old ones, `None` if that cannot be measured."""


@dataclass
class Choice:
    """What was decided by cost, for sites of one rule and one size.

    Attributes:
        rule: The rule.
        makes: The operators that it makes of the site.
        estimate: The measurement that decided, `None` where the user did.
        taken: Whether the rewrite was made; if not, the site stayed as it was or another rule took it.
        sites: The values at the roots of the sites.
    """

    rule: str
    makes: str
    estimate: Estimate | None
    taken: bool
    sites: dict[str, None] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The choice as data for JSON."""
        known = self.estimate
        return {
            "rule": self.rule,
            "makes": self.makes,
            "taken": self.taken,
            "speedup": known.speedup if known else None,
            "sizes": known.sizes if known else None,
            "source": known.source if known else "pinned",
            "sites": list(self.sites),
        }


@dataclass(frozen=True)
class Choices:
    """A chooser for the rewriter that keeps account of what it decided.

    Attributes:
        costs: What was measured once and for all.
        pins: For families or rules, the operator that sites of theirs become whatever it costs, or `none`.
        always: Rules that are applied whatever they cost.
        meter: Measures at the site instead of asking the table, for rules that say at which sizes they are worth measuring.
        found: The decisions so far.
    """

    costs: CostTable = field(default_factory=lambda: CostTable({}))
    pins: Mapping[str, str] = field(default_factory=dict)
    always: Collection[str] = ()
    meter: Meter | None = None
    found: dict[tuple[Any, ...], Choice] = field(default_factory=dict)

    def but_always(self, rules: Collection[str]) -> Choices:
        """The same with some rules that are applied whatever they cost; decisions go to the same account."""
        return replace(self, always=[*self.always, *rules]) if rules else self

    def list(self) -> Sequence[Choice]:
        """The decisions, those with most sites first."""
        return sorted(self.found.values(), key=lambda choice: (-len(choice.sites), choice.rule))

    def candidates(self, rule: Rule) -> Sequence[Pattern]:
        """The replacements, or those with the operator that the user pinned."""
        pin = self._pin(rule)
        found = [made for made in rule.replacements if pin is not None and _names(pin, operators_of(made))]
        return found or rule.replacements

    def refusal(self, rule: Rule, match: Match) -> Refusal | None:
        """Why the user or the table is against a rule, at the sizes of a match."""
        pin = self._pin(rule)
        if pin is not None and not _names(pin, rule.targets) and (pin == LEAVE or _takes_away(pin, rule)):
            return refuse("pinned", Subject("rule", rule.family), found=pin)
        if self._free_of_cost(rule) or self.measures(rule):
            return None
        estimate = self.costs.estimate(rule.name, match.shape)
        if estimate is None or estimate.worth_it:
            return None
        self._note(rule, ", ".join(rule.targets), estimate, False, match)
        return _slower(rule, estimate)

    def measures(self, rule: Rule) -> bool:
        """Whether sites of a rule are measured: its proof says that it is about speed."""
        return self.meter is not None and bool(rule.proof.typical) and not self._free_of_cost(rule)

    def speedup(self, edit: Edit) -> float | None:
        """How much faster the new nodes are."""
        estimate = self.meter.measure(edit) if self.meter is not None else None
        return None if estimate is None else estimate.speedup

    def objection(self, edit: Edit) -> Refusal | None:
        """Why a rewrite is slower than what it replaces, where it is; a rewrite that passes is noted as taken."""
        rule: Rule = edit.rule
        free = self._free_of_cost(rule)
        estimate = None if free else self._estimate(edit)
        refused = estimate is not None and not estimate.worth_it
        if estimate is not None or (free and self._pin(rule) is not None):
            makes = dict.fromkeys(_full_name(node.domain, node.op_type) for node in edit.added)
            self._note(rule, ", ".join(makes), estimate, not refused, edit.match)
        return _slower(rule, estimate) if estimate is not None and refused else None

    def _estimate(self, edit: Edit) -> Estimate | None:
        """What is measured at the site or, where that cannot be, what the table says."""
        measured = self.meter.measure(edit) if self.meter is not None and self.measures(edit.rule) else None
        return measured or self.costs.estimate(edit.rule.name, edit.match.shape)

    def _pin(self, rule: Rule) -> str | None:
        return self.pins.get(rule.name, self.pins.get(rule.family)) if self.pins else None

    def _free_of_cost(self, rule: Rule) -> bool:
        pin = self._pin(rule)
        return rule.name in self.always or (pin is not None and _names(pin, rule.targets))

    def _note(self, rule: Rule, makes: str, estimate: Estimate | None, taken: bool, match: Match) -> None:
        key = (rule.name, makes, estimate, taken)
        choice = self.found.setdefault(key, Choice(rule.name, makes, estimate, taken))
        choice.sites[match.root.name or "?"] = None


def check_pins(pins: Mapping[str, str], rules: Iterable[Rule]) -> dict[str, str]:
    """Pins that some rule can follow, as they were given.

    Raises:
        PipelineError: There is no such family or rule, or none of its rules makes the operator.
    """
    rules = list(rules)
    for name, pin in pins.items():
        named = [rule for rule in rules if name in (rule.name, rule.family)]
        if not named:
            families = ", ".join(dict.fromkeys(rule.family for rule in rules))
            raise PipelineError(f"pin {name}={pin}: there is no rule or family {name}; families are {families}")
        made = dict.fromkeys(operator for rule in named for operator in rule.targets)
        if pin != LEAVE and not _names(pin, made):
            raise PipelineError(
                f"pin {name}={pin}: no rule of {name} makes {pin}; they make {', '.join(made)}, and {LEAVE} leaves "
                f"sites as they are"
            )
    return dict(pins)


def _slower(rule: Rule, estimate: Estimate) -> Refusal:
    return refuse("slower", Subject("rule", rule.name), found=str(estimate))


def _names(pin: str, operators: Collection[str]) -> bool:
    """Whether a pin is one of these operators. The domain may be left out, and then is any; ai.onnx is the standard's own."""
    if pin.startswith(STANDARD):
        return pin.removeprefix(STANDARD) in operators
    return any(pin in (operator, operator.rpartition(".")[2]) for operator in operators)


def _takes_away(pin: str, rule: Rule) -> bool:
    """Whether the root of a rule's pattern may be the operator that the user wants to keep."""
    return pin.rpartition(".")[2] in rule.matcher.heads


def _full_name(domain: str, op_type: str) -> str:
    return f"{domain}.{op_type}" if domain else op_type
