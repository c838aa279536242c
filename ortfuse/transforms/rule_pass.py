"""Run a set of rules as one pass: the form that rule files take in a pipeline."""

from __future__ import annotations

import functools
from dataclasses import dataclass

from ortfuse.errors import OrtfuseError, RuleError
from ortfuse.rewrite import DeferredRule, Exactness, Rewriter, Rule, RuleEntry, demand_rule_test
from ortfuse.transforms.context import Context


@dataclass(frozen=True)
class RulePass:
    """Apply rules until none applies any more.

    Attributes:
        name: The name of the pass in pipelines.
        rules: Its rules, in the order in which they are tried on a node; those that are deferred are loaded when they are tried.
        without: Names of rules to leave out, separated by spaces: `fuse.activation{without="gelu.from_tanh_form"}`.
        always: Names of rules to apply even where they were measured to be slower than what they replace.
    """

    name: str
    rules: tuple[RuleEntry, ...]
    without: str = ""
    always: str = ""

    def __post_init__(self) -> None:
        for rule in self.rules:
            if not isinstance(rule, DeferredRule):
                demand_rule_test(rule)

    def run(self, context: Context) -> int:
        """Apply the rules whose exactness is allowed; returns the number of rewrites."""
        rules = self.selected(context.approximate)
        if not rules:
            self._say_why(context)
            return 0
        rules = [rule for rule in rules if rule.name not in context.without]
        rewriter = Rewriter(
            context.editor,
            context.target,
            context.log,
            context.debugging,
            context.choices.but_always(self.always.split()),
            goes_on=functools.partial(_goes_on, context),
        )
        return rewriter.run(rules)

    def _say_why(self, context: Context) -> None:
        """Note why none of the rules may run."""
        left_out = self.without.split()
        names = [rule.name for rule in self.rules if rule.name not in left_out]
        lossy = [rule.name for rule in self.rules if rule.name in names and rule.exactness is Exactness.LOSSY]
        if lossy:
            context.note(f"{self.name} did nothing: {lossy[0]} and its like are lossy: they need a bound on the error")
        elif names:
            context.note(f"{self.name} did nothing: approximations are not allowed, and {', '.join(names)} is one each")
        elif self.rules:
            context.note(f"{self.name} did nothing: all of its rules are left out by name")

    def selected(self, approximate: bool) -> list[RuleEntry]:
        """The rules that may run: approximations only if allowed, none that is lossy, none that is left out by name."""
        kinds = {Exactness.EXACT, Exactness.ROUNDING} | ({Exactness.APPROXIMATE} if approximate else set())
        left_out = self.without.split()
        return [rule for rule in self.rules if rule.name not in left_out and rule.exactness in kinds]


def _goes_on(context: Context, rule: Rule, error: Exception) -> bool:
    """Leave out a rule of ours that failed, and say so.

    An error that is raised on purpose is for the user, and so is that of another rule: whoever wrote it has to know.
    """
    if context.editor.is_users(rule) or (isinstance(error, OrtfuseError) and not isinstance(error, RuleError)):
        return False
    context.without.add(rule.name)
    text = str(error) if rule.name in str(error) else f"rule {rule.name} fails: {type(error).__name__}: {error}"
    context.failures.append(f"{text}; the result is without it: please report it with the model")
    return True
