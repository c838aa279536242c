"""The proof of a rule: instances on which it must fire and be right, near misses on which it must be silent or right."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import onnx_ir as ir

from ortfuse.proof.instance import Builder, Instance, opsets_for
from ortfuse.proof.near import near_misses
from ortfuse.proof.run import disagreement, in_float64, rewrite, runs
from ortfuse.rewrite import Exactness, Rule
from ortfuse.target import Target

SIZES = (3, 1, 5, 2)
"""What the symbols of a proof are bound to, in turn."""


@dataclass
class ProofReport:
    """What was tried for one rule, and what failed (empty when the rule is proved)."""

    rule: str
    instances: int = 0
    near_misses: int = 0
    near_misses_fired: int = 0
    failures: list[str] = field(default_factory=list)
    counterexamples: list[ir.Model] = field(default_factory=list)

    @property
    def proved(self) -> bool:
        """Whether instances were found and nothing failed."""
        return self.instances > 0 and not self.failures

    def fail(self, text: str, model: ir.Model) -> None:
        """Note a failure and the model that shows it."""
        self.failures.append(text)
        self.counterexamples.append(model)


def prove(rule: Rule, target: Target | None = None, spellings: int = 6, max_near_misses: int = 40) -> ProofReport:
    """Try `rule` on instances of its pattern and on near misses of them.

    Every shape set is tried in every element type and opset, in `spellings` spellings each; near misses are built of the
    first spelling of each shape set, `max_near_misses` at most.
    """
    target = target or Target()
    report = ProofReport(rule.name)
    for number in range(len(rule.proof.shape_sets())):
        for dtype, opset, seed in itertools.product(rule.proof.dtypes, opsets_for(rule), range(spellings)):
            instance = _build(rule, number, dtype, seed, opset)
            try_instance(rule, instance, _build(rule, number, "double", seed, opset), target, report)
        first = _build(rule, number, rule.proof.dtypes[0], 0, opsets_for(rule)[0])
        for text, model in itertools.islice(near_misses(first.model), max_near_misses):
            try_near_miss(rule, Instance(model, _symbols(model), number), text, target, report)
    if not report.instances:
        report.failures.append("no instance of the pattern runs")
    return report


def _build(rule: Rule, shape_set: int, dtype: str, seed: int, opset: int) -> Instance:
    kind = {"float32": "FLOAT", "float64": "DOUBLE"}.get(dtype, dtype.upper())
    return Builder(rule, shape_set, ir.DataType[kind], seed, opset).instance()


def _symbols(model: ir.Model) -> tuple[str, ...]:
    return tuple(
        sorted({str(dim.value) for v in model.graph.inputs for dim in v.shape or () if not isinstance(dim, int)})
    )


def _bindings(symbols: tuple[str, ...], count: int) -> Iterator[dict[str, int]]:
    for offset in range(count):
        yield {symbol: SIZES[(index + offset) % len(SIZES)] for index, symbol in enumerate(symbols)}


def try_instance(rule: Rule, instance: Instance, exact: Instance, target: Target, report: ProofReport) -> None:
    """The rule must fire on `instance` and be no further from `exact` (the same in float64) than the original."""
    rewritten = None
    for number, sizes in enumerate(_bindings(instance.symbols, 2)):
        inputs = instance.inputs(sizes, number)
        before = runs(instance.model, inputs)
        if before is None:
            return
        if rewritten is None:
            report.instances += 1
            rewritten = rewrite(rule, instance.model, target)
            if not rewritten.hits:
                report.fail(f"silent on its own pattern (spelling {instance.seed}): {rewritten.reason}", instance.model)
                return
        after = runs(rewritten.model, inputs)
        if after is None:
            report.fail(f"the runtime cannot execute the replacement (spelling {instance.seed})", instance.model)
            return
        truth = None if rule.exactness is Exactness.EXACT else in_float64(exact.model, inputs)
        text = disagreement(before, after, truth, rule.exactness is Exactness.EXACT)
        if text is not None:
            report.fail(f"wrong (spelling {instance.seed}, {sizes}): {text}", instance.model)
            return


def try_near_miss(rule: Rule, instance: Instance, text: str, target: Target, report: ProofReport) -> None:
    """The rule must stay silent on the near miss, or stay right."""
    sizes = next(_bindings(instance.symbols, 1))
    inputs = instance.inputs(sizes, instance.seed)
    before = runs(instance.model, inputs)
    if before is None:
        return
    report.near_misses += 1
    rewritten = rewrite(rule, instance.model, target)
    if not rewritten.hits:
        return
    report.near_misses_fired += 1
    after = runs(rewritten.model, inputs)
    if after is None:
        report.fail(f"near miss ({text}): the runtime cannot execute the replacement", instance.model)
        return
    problem = disagreement(before, after, None, rule.exactness is Exactness.EXACT)
    if problem is not None:
        report.fail(f"near miss ({text}): {problem}", instance.model)
