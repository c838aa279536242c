"""Class `Tried`: a model, the result of applying a rule to it, and the check of that result."""

from __future__ import annotations

import fnmatch
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import repeat
from typing import Any

import numpy as np
import onnx_ir as ir

from ortfuse.rewrite import Exactness, Rule
from ortfuse.runtime.float64.reference import Reference
from ortfuse.verification.rule_tests.defined_operators import with_definitions
from ortfuse.verification.rule_tests.instance import Instance, Kind
from ortfuse.verification.rule_tests.run_instance import Arrays, Rewritten, Runner, disagreement, is_far_from

Array = np.ndarray[Any, Any]

Executed = tuple[dict[str, int], Kind, dict[str, Array], Arrays]
"""Sizes of symbols, the kind of inputs, the inputs, and the outputs of the model."""


@dataclass
class Tried:
    """A model, and the result of applying a rule to it.

    Attributes:
        instance: The model before the rewrite.
        runner: Runs it.
        rewrite: Applies the rule, once it is asked for `rewritten`.
        is_near: Whether it is a near miss, on which the rule need not fire.
        matches: Whether the pattern and the guards hold anywhere.
        exact: Makes the model in float64; the model itself if there is no other.
    """

    instance: Instance
    runner: Runner
    rewrite: Callable[[], Rewritten]
    is_near: bool
    matches: bool = True
    exact: Callable[[], ir.Model] | None = None
    _executed: dict[tuple[str, ...], list[Executed]] = field(default_factory=dict, init=False, repr=False)
    _exact: Reference | None = field(default=None, init=False, repr=False)

    @functools.cached_property
    def rewritten(self) -> Rewritten:
        """The result of applying the rule."""
        return self.rewrite() if self.matches else Rewritten(self.instance.model, 0, "its pattern is nowhere")

    @property
    def runs(self) -> bool:
        """Whether the runtime executes the model on the first of its inputs."""
        instance = self.instance
        return self.runner.run(instance.inputs(next(instance.bindings()), 0)) is not None

    def executed(self, rule: Rule) -> list[Executed]:
        """The sizes and kinds of inputs on which the runtime executes the model, without those that the rule test excludes."""
        excluded = tuple(rule.test.never_empty)
        if excluded not in self._executed:
            conditions = [
                (sizes, kind, self.instance.inputs(sizes, seed, kind))
                for seed, (sizes, kind) in enumerate(_conditions(self.instance))
                if not _assumed_not_empty(rule, sizes)
            ]
            old = self.runner.run_each([inputs for _, _, inputs in conditions])
            self._executed[excluded] = [
                (*one, found) for one, found in zip(conditions, old, strict=True) if found is not None
            ]
        return self._executed[excluded]

    def problem(self, rule: Rule, rewritten: Rewritten) -> str | None:
        """The error of `rewritten`, the result of `rule` on the model; an empty text if it is right.

        `None` if the model does not run, so that nothing can be said, or if the rule test assumes that it does not occur.
        """
        if rewritten.error is not None:
            return f"raises: {rewritten.error}" if not self.is_near or self.runs else None
        problem = self._compare(rule, rewritten.model, rewritten.defined)
        if (
            problem
            and self.is_near
            and any(fnmatch.fnmatchcase(self.instance.text, words) for words in rule.test.assumes)
        ):
            return None
        return problem

    def _compare(self, rule: Rule, after: ir.Model, defined: ir.Model | None) -> str | None:
        """Run both sides on several sizes and kinds of inputs.

        A model that runs only on empty inputs does not count as an instance. The model in float64 is built and evaluated
        only if the two results are not equal as they are. The result of a lossy rule is compared with its definition, and
        that with the model itself.
        """
        ran = self.executed(rule)
        if all(0 in sizes.values() for sizes, *_ in ran):
            return None
        given = [inputs for _, _, inputs, _ in ran]
        replaced, definition = Runner(after, rule), None if defined is None else Runner(defined, rule)
        meanings = repeat(None) if definition is None else definition.run_each(given)
        for (sizes, kind, inputs, found), new, meant in zip(ran, replaced.run_each(given), meanings, strict=False):
            where = f"({_sizes_text(sizes)}{_KINDS.get(kind, '')})"
            if new is None:
                return f"{where}: the runtime cannot execute the replacement: {replaced.refusal}"
            if definition is not None and meant is None:
                return f"{where}: the runtime cannot execute the definition: {definition.refusal}"
            problem = self._disagreement(rule, kind, inputs, found, new, meant)
            if problem is not None:
                return f"{where}: {problem}"
        return ""

    def _disagreement(
        self, rule: Rule, kind: Kind, inputs: Mapping[str, Array], old: Arrays, new: Arrays, meant: Arrays | None
    ) -> str | None:
        """The error of one result, given the results of the model itself and of a lossy rule's definition."""
        if meant is not None:
            if kind != "zero" and is_far_from(old, meant):
                return "the definition is something else than what it stands for in lower precision"
            return disagreement(meant, new, None, bit_equal=False, step=rule.test.step, beyond=rule.test.beyond)
        bit_equal = rule.exactness is Exactness.EXACT
        problem = disagreement(old, new, None, bit_equal)
        if problem is None or bit_equal:
            return problem
        exact = self._reference(rule).run(inputs)
        known = None if exact is None else list(exact.values())
        return disagreement(old, new, known, bit_equal, step=rule.test.step)

    def _reference(self, rule: Rule) -> Reference:
        if self._exact is None:
            model = self.exact() if self.exact else self.instance.model
            self._exact = Reference(with_definitions(model, rule.test.definitions))
        return self._exact


def _assumed_not_empty(rule: Rule, sizes: Mapping[str, int]) -> bool:
    empty = [symbol for symbol, size in sizes.items() if size == 0]
    return any(fnmatch.fnmatchcase(symbol, name) for symbol in empty for name in rule.test.never_empty)


def _conditions(instance: Instance) -> Iterator[tuple[dict[str, int], Kind]]:
    bindings = list(instance.bindings())
    yield bindings[0], "normal"
    yield bindings[0], "zero"
    if any(value.dtype is not None and value.dtype.is_integer() for value in instance.model.graph.inputs):
        yield bindings[0], "extreme"
    for sizes in sorted(bindings[1:], key=lambda sizes: 0 in sizes.values()):
        yield sizes, "normal"


_KINDS = {"zero": ", inputs all zero", "extreme": ", integers at the ends of their type"}


def _sizes_text(sizes: Mapping[str, int]) -> str:
    return ", ".join(f"{symbol} = {size}" for symbol, size in sizes.items()) or "no symbols"
