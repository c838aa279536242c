"""Choose among the legal forms of a site: by forced choices, measurements, or the rule's preference."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from ortfuse.errors import PipelineError
from ortfuse.ir.edit import Edit
from ortfuse.ir.refusal import Refusal, Subject, refuse, words
from ortfuse.ir.traits import PLAIN, has
from ortfuse.rewrite import Rule
from ortfuse.rewrite.pattern import Match, Pattern
from ortfuse.rewrite.rule import operators_of
from ortfuse.serialization import Record, derived, entry
from ortfuse.targets import CostTable, Estimate
from ortfuse.targets.rule_speedups import ShapeOf
from ortfuse.transforms.refuse_unmerged_transposes import transposes_too_much

STANDARD = "ai.onnx."

LEAVE = "none"
"""The forced choice that leaves the sites of a family as they are."""

MOST_SITES = 3
"""The most sites named in one remark."""


class Meter(Protocol):
    """Measure rewrites at their sites."""

    def measure(self, edit: Edit) -> Estimate | None:
        """The speedup of the new nodes over the old ones; `None` if that cannot be measured."""


def _names(sites: Mapping[str, None]) -> list[str]:
    return list(sites)


@dataclass
class Choice(Record):
    """A decision made by cost, for sites of one rule and one size.

    Attributes:
        rule: The rule.
        produces: The operators that the site is rewritten to.
        estimate: The measurement that decided; `None` if a forced choice of the user did.
        applied: Whether the rewrite was made; if not, the site was left as it was or rewritten by another rule.
        sites: The values at the roots of the sites.
    """

    rule: str
    produces: str
    estimate: Estimate | None = field(metadata=entry(omit=True))
    applied: bool
    sites: dict[str, None] = field(default_factory=dict, metadata=entry(convert=_names))

    @property
    def decision(self) -> str:
        """The decision in words; a loss within the noise of measurements is called that."""
        if not self.applied:
            return "left as it was"
        even = self.estimate is not None and self.estimate.speedup < 1
        return "taken: as fast, within the noise" if even else "taken"

    @derived()
    def speedup(self) -> float | None:
        """The measured speedup of the rewrite; `None` if a pin decided."""
        return self.estimate.speedup if self.estimate else None

    @property
    @derived()
    def sizes(self) -> str | None:
        """The sizes at which it was measured."""
        return self.estimate.sizes if self.estimate else None

    @property
    @derived()
    def source(self) -> str:
        """The table of costs that decided, or `forced`."""
        return self.estimate.source if self.estimate else "forced"


@dataclass(frozen=True)
class Choices:
    """A chooser for the rewriter that records its decisions.

    Attributes:
        costs: The table of costs measured in advance.
        forced: Maps families or rules to the operator that their sites become regardless of cost, or to `none`.
        always: Rules that are applied regardless of cost.
        meter: Measures at the site instead of consulting the table, for rules whose rule tests declare typical sizes.
        found: The decisions so far.
        unmeasured: For each rule that is applied wherever it is legal, so that it is not measured, the sites where it fused.
        transposing: For each rule, the sites where it would leave more to be transposed than it is worth.
        metered: For each rule that is measured, the sites, and what decided at those that the meter could not measure.
    """

    costs: CostTable = field(default_factory=lambda: CostTable({}))
    forced: Mapping[str, str] = field(default_factory=dict)
    always: Collection[str] = ()
    meter: Meter | None = None
    found: dict[tuple[Any, ...], Choice] = field(default_factory=dict)
    metered: dict[str, dict[str, str]] = field(default_factory=dict)
    unmeasured: dict[str, dict[str, None]] = field(default_factory=dict)
    transposing: dict[str, dict[str, None]] = field(default_factory=dict)

    def but_always(self, rules: Collection[str]) -> Choices:
        """A copy in which some rules are applied regardless of cost; it records its decisions in the same place."""
        return replace(self, always=[*self.always, *rules]) if rules else self

    def list(self) -> Sequence[Choice]:
        """The decisions, those with most sites first."""
        return sorted(self.found.values(), key=lambda choice: (-len(choice.sites), choice.rule))

    def remarks(self) -> Sequence[str]:
        """Return notes for the user about the costs that decided: of another processor, or not measured here."""
        elsewhere = self.costs.remarks({one.estimate.source for one in self.found.values() if one.estimate})
        transposing = [
            f"{rule} was not applied at {_listed(list(sites))}: it would leave more to be transposed, which MatMul reads as "
            "it is, than it is worth; --force takes it whatever it costs"
            for rule, sites in self.transposing.items()
        ]
        return [*elsewhere, *transposing, *self._not_measured()]

    def _not_measured(self) -> Sequence[str]:
        """Return notes on sites that were not measured."""
        if self.meter is None:
            return []
        applied = ", ".join(f"{rule} ({len(sites)})" for rule, sites in self.unmeasured.items())
        legal = [f"not measured, as these rules are applied wherever they are legal: {applied}"] if applied else []
        if not self.metered:
            return ["nothing was measured: no rule that is chosen by cost has a site here", *legal]
        found: dict[tuple[str, str], list[str]] = {}
        for rule, sites in self.metered.items():
            for site, otherwise in sites.items():
                if otherwise:
                    found.setdefault((rule, otherwise), []).append(site)
        return [
            *(
                f"{rule} could not be measured at {_listed(sites)}: {otherwise}"
                for (rule, otherwise), sites in found.items()
            ),
            *legal,
        ]

    def candidates(self, rule: Rule) -> Sequence[Pattern]:
        """The replacements; with a forced choice, only those that make the forced operator."""
        wanted = self._forced_of(rule)
        found = [made for made in rule.replacements if wanted is not None and names_one(wanted, operators_of(made))]
        return found or rule.replacements

    def refusal(self, rule: Rule, match: Match) -> Refusal | None:
        """Why a forced choice or the table of costs rules out a rule, at the sizes of a match."""
        wanted = self._forced_of(rule)
        leaves = wanted is not None and (wanted == LEAVE or rule.spells_out or _takes_away(wanted, rule))
        if wanted is not None and leaves and not names_one(wanted, rule.targets):
            return refuse("forced", Subject("rule", rule.family), found=wanted)
        if rule.on_request and not self._free_of_cost(rule):
            made = rule.targets_at(match)[0]
            return refuse("unasked", match.root, found=f"--force {rule.family}={made}", needed=made)
        if wanted is not None and names_one(wanted, rule.targets) and not names_one(wanted, rule.targets_at(match)):
            return refuse("forced", Subject("rule", rule.family), found=wanted)
        if self._free_of_cost(rule) or self.measures(rule):
            return None
        estimate = self.by_table(rule, match)
        if estimate is None or estimate.worth_it:
            return None
        self._note(rule, ", ".join(rule.targets), estimate, False, match)
        return _slower(rule, estimate)

    def insists(self, rule: Rule) -> bool:
        """Whether `--force` asks for the operators of the rule's family."""
        return self._forced_of(rule) not in (None, LEAVE)

    def forced_operator(self, rule: Rule) -> str:
        """The operator that a forced choice wants of a rule, if there is one."""
        wanted = self._forced_of(rule)
        return "" if wanted is None or wanted == LEAVE else wanted

    def measures(self, rule: Rule) -> bool:
        """Whether sites of a rule are measured: there is a meter, and the rule test declares typical sizes."""
        return self.meter is not None and bool(rule.test.typical) and not self._free_of_cost(rule)

    def speedup(self, edit: Edit) -> float | None:
        """The speedup of the new nodes."""
        estimate = self.meter.measure(edit) if self.meter is not None else None
        return None if estimate is None else estimate.speedup

    def objection(self, edit: Edit) -> Refusal | None:
        """A refusal if a rewrite is slower than what it replaces; otherwise the rewrite is recorded as taken."""
        rule: Rule = edit.rule
        free = self._free_of_cost(rule)
        transposes = None if free else transposes_too_much(edit)
        if transposes is not None:
            self.transposing.setdefault(rule.name, {})[edit.name] = None
            return transposes
        if self.meter is not None and not free and not self.measures(rule) and _fuses(edit):
            self.unmeasured.setdefault(rule.name, {})[edit.name] = None
        estimate = None if free else self._estimate(edit)
        refused = estimate is not None and not estimate.worth_it
        if estimate is not None or (free and self._forced_of(rule) is not None):
            makes = dict.fromkeys(full_name(node.domain, node.op_type) for node in edit.added)
            self._note(rule, ", ".join(makes), estimate, not refused, edit.match)
        return _slower(rule, estimate) if estimate is not None and refused else None

    def _estimate(self, edit: Edit) -> Estimate | None:
        """The measurement at the site or, if that is not possible, the estimate of the table."""
        estimate = self.by_table(edit.rule, edit.match)
        if self.meter is None or not self.measures(edit.rule):
            return estimate
        measured = self.meter.measure(edit)
        otherwise = "the table decided" if estimate is not None else "it was applied, as the table does not have it"
        self.metered.setdefault(edit.rule.name, {})[edit.name] = "" if measured is not None else otherwise
        return measured or estimate

    def by_table(self, rule: Rule, match: Match) -> Estimate | None:
        """The estimate of the table at the sizes and the element type of a match."""
        dtype = match.facts.dtype(match.root)
        shape_of = _shape_of(match) if rule.compared_by is None else rule.compared_by(match).get
        return self.costs.estimate(rule.name, shape_of, *([words(dtype)] if dtype is not None else []))

    def _forced_of(self, rule: Rule) -> str | None:
        return self.forced.get(rule.name, self.forced.get(rule.family)) if self.forced else None

    def _free_of_cost(self, rule: Rule) -> bool:
        wanted = self._forced_of(rule)
        return rule.name in self.always or (wanted is not None and names_one(wanted, rule.targets))

    def _note(self, rule: Rule, makes: str, estimate: Estimate | None, taken: bool, match: Match) -> None:
        key = (rule.name, makes, estimate, taken)
        choice = self.found.setdefault(key, Choice(rule.name, makes, estimate, taken))
        choice.sites[match.root.name or "?"] = None


def check_forced(forced: Mapping[str, str], rules: Iterable[Rule]) -> dict[str, str]:
    """Check that some rule can follow each forced choice, and return the forced choices unchanged.

    Raises:
        PipelineError: There is no such family or rule, or none of its rules makes the operator.
    """
    rules = list(rules)
    for name, wanted in forced.items():
        named = [rule for rule in rules if name in (rule.name, rule.family)]
        if not named:
            families = ", ".join(dict.fromkeys(rule.family for rule in rules))
            raise PipelineError(f"force {name}={wanted}: there is no rule or family {name}; families are {families}")
        made = dict.fromkeys(operator for rule in named for operator in rule.targets)
        if wanted != LEAVE and not names_one(wanted, made):
            raise PipelineError(
                f"force {name}={wanted}: no rule of {name} makes {wanted}; they make {', '.join(made)}, and {LEAVE} leaves "
                f"sites as they are"
            )
    return dict(forced)


def _shape_of(match: Match) -> ShapeOf:
    """The shapes of captured values by name, for a table which may name values that the pattern does not capture any more."""
    return lambda name: match.shape(name) if match.get(name) is not None else None


def _listed(sites: Sequence[str]) -> str:
    more = f" and {len(sites) - MOST_SITES} other sites" if len(sites) > MOST_SITES else ""
    return ", ".join(sites[:MOST_SITES]) + more


def _fuses(edit: Edit) -> bool:
    """Whether a rewrite makes more than sums, products and data movement, which are not chosen for their speed."""
    return not all(has(node, PLAIN) for node in edit.added)


def _slower(rule: Rule, estimate: Estimate) -> Refusal:
    return refuse("slower", Subject("rule", rule.name), found=str(estimate))


def names_one(wanted: str, operators: Collection[str]) -> bool:
    """Whether a forced choice names one of these operators; without a domain it matches any, and `ai.onnx` is the default."""
    if wanted.startswith(STANDARD):
        return wanted.removeprefix(STANDARD) in operators
    return any(wanted in (operator, operator.rpartition(".")[2]) for operator in operators)


def _takes_away(wanted: str, rule: Rule) -> bool:
    """Whether the root of a rule's pattern may be the forced operator, so that the rule would rewrite it."""
    return wanted.rpartition(".")[2] in rule.matcher.heads


def full_name(domain: str, op_type: str) -> str:
    """The name of an operator, with its domain if that is not ai.onnx."""
    return f"{domain}.{op_type}" if domain else op_type
