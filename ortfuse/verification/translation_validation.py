"""Translation validation: check every change of a model where it happens, on its own nodes with its own weights.

This also works for models too large to be run twice, or at all: only one rewrite is run at a time, before and after, on
generated inputs of several sizes (see `ortfuse.runtime.rewrite_sides`). Edits made by passes that are not rules must give
bit-identical results.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import onnx_ir as ir

from ortfuse.errors import CrashError, OrtfuseError, VerificationError
from ortfuse.ir import walk
from ortfuse.ir.edit import Edit
from ortfuse.ir.enumerate_tensors import constant_tensor
from ortfuse.ir.refusal import Refusal, Subject, refuse
from ortfuse.rewrite import Exactness
from ortfuse.runtime.inputs.random_inputs import Inputs, InputSpec
from ortfuse.runtime.reference_runs import Experiment, experiments
from ortfuse.runtime.rewrite_sides import Sides, sides
from ortfuse.runtime.session import Session
from ortfuse.verification.compare_downstream import behind
from ortfuse.verification.verdict import Judged, Verdict, judge

QUIET = 2.0**-6
"""Scale of the numbers in one run: small enough that their variance is about the size of usual epsilons."""

MOST_SITES = 3
"""The most sites named in one line."""

APPROXIMATION = 0.2
"""Relative error up to which an approximation, which was asked for, is taken to be one of what it replaces."""

State = Literal["equal", "undone", "unchecked"]


@dataclass(frozen=True)
class SiteCheck(Judged):
    """The check of one change.

    Attributes:
        rule: The rule, or the pass (`fold`, `cse`, `dce`).
        site: The value at the root of the match, or the first one that is replaced or removed.
        state: Whether both sides agree, the rewrite was undone because they do not, or they could not be compared.
        verdict: The comparisons, `None` if none were made.
        reason: What is wrong, or why nothing could be compared.
    """

    rule: str
    site: str
    state: State
    verdict: Verdict | None = None
    reason: str = ""

    @property
    def refusal(self) -> Refusal | None:
        """Why the change is undone; `None` if it is not."""
        if self.state != "undone":
            return None
        return refuse("not_equal", Subject("value", self.site), found=self.reason)

    def text(self) -> str:
        """The rule, the site, and what is wrong, with the errors of both sides."""
        errors = self.errors()
        return f"{self.rule} at '{self.site}': {self.reason or 'equal'}" + (f"; {errors}" if errors else "")


@dataclass
class SiteChecks:
    """An inspector for the rewriter that checks every change before it is final and objects to wrong ones.

    A change that cannot be checked is allowed and reported as unchecked. A change that was refused is not tried again.

    Attributes:
        tolerance: Allowed relative error; the default is given in `ortfuse.runtime.comparison`.
        seed: Seed of the generated inputs.
        progress: Called with a short text on what is being done.
        observed: Values that the model computes, by name, from `ortfuse.runtime.observed_values`: where all that a
            rewrite takes is
            among them, both sides are run on them too. A function is called for them at the first check.
        bits: Whether a change that is no rewrite has to give the same bits. If not, it is compared as a rewrite is.
        found: The latest check of each rule at each site.
    """

    tolerance: float | None = None
    seed: int = 0
    progress: Callable[[str], None] = lambda text: None
    observed: Inputs | Callable[[], Inputs] = field(default_factory=dict)
    bits: bool = True
    found: dict[tuple[str, str], SiteCheck] = field(default_factory=dict)

    def objection(self, edit: Edit) -> Refusal | None:
        """The error of a change; `None` if there is none or it cannot be checked. Only rewrites may change bits."""
        if not edit.nodes and not edit.outputs:
            return None  # only names, types, imports or the order changed, nothing that is computed
        key = (edit.author, edit.name)
        known = self.found.get(key)
        if known is None or known.state != "undone":
            self.progress(f"checking {edit.author} ({len(self.found) + 1})")
            self.found[key] = known = self._check(edit)
        return known.refusal

    def _check(self, edit: Edit) -> SiteCheck:
        observed = self.observed = self.observed() if callable(self.observed) else self.observed
        if edit.rule is None:
            found = check_edit(edit, seed=self.seed, observed=observed)
            if self.bits or found.state != "undone" or not edit.outputs:
                return found
        tolerance = self._tolerance(edit.rule)
        found = check_rewrite(edit, tolerance=tolerance, seed=self.seed, observed=observed)
        if found.state != "undone":
            return found
        with behind(edit) as whole:  # hidden scores differ on purpose, their weights do not
            if whole is None:
                return found
            return check_rewrite(whole, tolerance=tolerance, seed=self.seed, observed=observed)

    def _tolerance(self, rule: Any) -> float | None:
        """The tolerance that was asked for; for an approximation, which differs on purpose, a wide one."""
        is_approximate = getattr(rule, "exactness", None) is Exactness.APPROXIMATE
        return APPROXIMATION if self.tolerance is None and is_approximate else self.tolerance

    def of_state(self, state: State) -> list[SiteCheck]:
        """The checks that ended in the given state."""
        return [check for check in self.found.values() if check.state == state]

    def undone(self) -> list[str]:
        """The changes that were undone, one line for each rule or pass, with the first reason."""
        wrong: dict[str, list[SiteCheck]] = {}
        for check in self.of_state("undone"):
            wrong.setdefault(check.rule, []).append(check)
        return [
            f"{author} is wrong at {_listed([check.site for check in found])} and was undone there: {found[0].reason}"
            for author, found in wrong.items()
        ]

    def summary(self) -> str:
        """All checks summed up in one line."""
        return summary(self.found.values())


def summary(checks: Iterable[SiteCheck]) -> str:
    """The number of checked changes, by outcome."""
    counts = {"equal": 0, "undone": 0, "unchecked": 0}
    for check in checks:
        counts[check.state] += 1
    checked = counts["equal"] + counts["undone"]
    changes = "change" if checked == 1 else "changes"
    text = (
        f"{checked} {changes} checked where {'it happens' if checked == 1 else 'they happen'}, {counts['equal']} equal"
    )
    text += f", {counts['undone']} wrong and undone" if counts["undone"] else ""
    return text + (f", {counts['unchecked']} not checked" if counts["unchecked"] else "")


def _listed(sites: Sequence[str]) -> str:
    more = f" and {len(sites) - MOST_SITES} other sites" if len(sites) > MOST_SITES else ""
    return ", ".join(f"'{site}'" for site in sites[:MOST_SITES]) + more


def by_author(checks: Iterable[SiteCheck]) -> str:
    """The rules and passes whose changes were checked, with how many of each were how: `mine.swish (6 equal, 1 undone)`."""
    counts: dict[str, Counter[str]] = {}
    for check in checks:
        counts.setdefault(check.rule, Counter())[check.state] += 1
    return ", ".join(
        f"{author} ({', '.join(f'{count} {_STATES[state]}' for state, count in found.items())})"
        for author, found in counts.items()
    )


_STATES: Mapping[str, str] = {"equal": "equal", "undone": "wrong and undone", "unchecked": "not checked"}


def check_rewrite(
    edit: Edit, *, tolerance: float | None = None, seed: int = 0, observed: Inputs | None = None
) -> SiteCheck:
    """Run both sides of a rewrite on generated inputs and compare them; the old side is also evaluated in float64.

    One of the runs uses numbers so small that the epsilon of a normalisation matters, another the `observed` values.
    """
    try:
        both = sides(edit, observed=observed)
        found, notes = _experiments(both, seed, observed or {})
        verdict = Verdict(judge(found, both.after, tolerance, levels=(False,)), notes)
    except OrtfuseError as error:
        return SiteCheck(edit.author, edit.name, "unchecked", reason=str(error))
    except Exception as error:
        # A small extracted model that trips up a converter or the runtime must not cost the user the large one.
        reason = f"the check itself failed: {type(error).__name__}: {error}"
        return SiteCheck(edit.author, edit.name, "unchecked", reason=reason)
    if verdict.ok:
        return SiteCheck(edit.author, edit.name, "equal", verdict)
    return SiteCheck(edit.author, edit.name, "undone", verdict, f"the check at the site failed: {verdict.summary()}")


def _experiments(both: Sides, seed: int, observed: Inputs) -> tuple[list[Experiment], list[str]]:
    """The old side of a rewrite on generated inputs, and on what the model computes there, if that was observed."""
    real = []
    values = {spec.name: observed.get(value.name or "") for spec, value in zip(both.inputs, both.border, strict=True)}
    kinds = [(spec.dtype, len(spec.shape)) for spec in both.inputs]
    seen = [array is not None and (ir.DataType.from_numpy(array.dtype), array.ndim) for array in values.values()]
    if values and kinds == seen:
        with suppress(VerificationError):
            real = experiments(both.before, [{name: array for name, array in values.items() if array is not None}])[0]
    try:
        found, notes = experiments(both.before, seed=seed, specs=both.inputs, also=_scaled_down(both.inputs))
    except VerificationError:
        if not real:
            raise
        found, notes = [], []
    return [*(replace(one, label="what the model computes there") for one in real), *found], notes


def check_edit(edit: Edit, *, seed: int = 0, observed: Inputs | None = None) -> SiteCheck:
    """Check that replacement values are bit-identical to the old ones, and that removed nodes are not needed.

    Constants are compared directly; everything else is run in the runtime without its optimisations, on generated inputs
    if it takes any. Identical nodes with the same inputs are not run.
    """
    if not edit.outputs:
        return _check_removal(edit)
    try:
        reason = _unequal(edit, seed, observed or {})
    except OrtfuseError as error:
        return SiteCheck(edit.author, edit.name, "unchecked", reason=str(error))
    except Exception as error:
        return SiteCheck(edit.author, edit.name, "unchecked", reason=f"the check itself failed: {error!r}")
    if reason is None:
        return SiteCheck(edit.author, edit.name, "equal")
    return SiteCheck(edit.author, edit.name, "undone", reason=f"the check at the site failed: {reason}")


def _check_removal(edit: Edit) -> SiteCheck:
    """Check that no value of the removed nodes is used by a remaining node or is an output of a remaining graph."""
    removed = set(edit.nodes)
    inner = {graph for node in removed for body in walk.subgraphs(node) for graph in walk.nested(body)}
    for node in edit.nodes:
        for output in node.outputs:
            left = [use.node for use in output.uses() if use.node not in removed and use.node.graph not in inner]
            if left or (output.is_graph_output() and node.graph not in inner):
                user = walk.describe(left[0]) if left else "the graph's outputs"
                return SiteCheck(edit.author, edit.name, "undone", reason=f"'{output.name}' is needed by {user}")
    return SiteCheck(edit.author, edit.name, "equal")


def _unequal(edit: Edit, seed: int, observed: Inputs) -> str | None:
    """The difference of the two sides, as text; `None` if there is none."""
    constants = [(_constant(old), _constant(new)) for old, new in edit.outputs]
    if not edit.nodes or all(one is not None and other is not None for one, other in constants):
        same = all(_same_tensor(one, other) for one, other in constants)
        return None if same else "the constants are not the same"
    if len(edit.nodes) == len(edit.added) == 1 and _same_node(edit.nodes[0], edit.added[0]):
        return None
    both = sides(_with_witnesses(edit), observed=observed)
    found, _ = experiments(both.before, seed=seed, reference=False, specs=both.inputs)
    try:
        after = Session(both.after, optimise=False)
        results = [after.run(experiment.inputs) for experiment in found]
    except CrashError as error:
        return str(error)
    for experiment, arrays in zip(found, results, strict=True):
        for name, array in arrays.items():
            before = experiment.expected[name]
            if before.dtype != array.dtype or before.shape != array.shape or before.tobytes() != array.tobytes():
                return f"'{name}' has other bits with {experiment.label or 'the constants of the model'}"
    return None


def _with_witnesses(edit: Edit) -> Edit:
    """The edit plus nodes that every run of the model executes: inputs on which they fail are not valid inputs of the model."""
    if not edit.witnesses:
        return edit
    witnesses = [node for node in edit.witnesses if node not in edit.nodes]
    results = [(output, output) for node in witnesses for output in node.outputs]
    return replace(edit, nodes=[*edit.nodes, *witnesses], outputs=[*edit.outputs, *results])


def _constant(value: ir.Value) -> ir.TensorProtocol | None:
    """The tensor of a value that is available without computing anything."""
    node = value.producer()
    if node is None:
        return value.const_value
    return constant_tensor(node) if node.op_type == "Constant" and not node.domain else None


def _same_tensor(one: ir.TensorProtocol | None, other: ir.TensorProtocol | None) -> bool:
    if one is None or other is None or one.dtype != other.dtype or tuple(one.shape) != tuple(other.shape):
        return False
    return one.tobytes() == other.tobytes()


def _same_node(one: ir.Node, other: ir.Node) -> bool:
    """Whether two nodes apply the same operator to the same values, with identical attributes."""
    written = [
        [ir.serde.serialize_attribute(node.attributes[name]) for name in sorted(node.attributes)]
        for node in (one, other)
    ]
    alike = one.op_identifier() == other.op_identifier() and one.version == other.version
    return alike and tuple(one.inputs) == tuple(other.inputs) and written[0] == written[1]


def _scaled_down(specs: Sequence[InputSpec]) -> Callable[[Inputs], Inputs]:
    """Return a function that scales down floating-point inputs and leaves masks alone."""
    loud = {spec.name for spec in specs if spec.dtype.is_floating_point() and spec.role.mask is None}

    def make(inputs: Inputs) -> Inputs:
        return {name: (array * QUIET).astype(array.dtype) if name in loud else array for name, array in inputs.items()}

    return make
