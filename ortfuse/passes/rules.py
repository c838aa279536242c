"""A set of rules run as one pass: what the files of the catalogue become in a pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from ortfuse.passes.context import Context
from ortfuse.passes.edit import initializers_to_nodes
from ortfuse.pattern import Match
from ortfuse.rewrite import Exactness, Rewriter, Rule, demand_proof
from ortfuse.target import Target


@dataclass(frozen=True)
class RulePass:
    """Applies rules until none applies any more.

    Attributes:
        name: What the pass is called in pipelines.
        rules: Its rules, in the order in which they are tried on a node.
        without: Names of rules to leave out, separated by spaces: `fuse.activation{without="gelu.tanh"}`.
        always: Names of rules to apply even where they were measured to be slower than what they replace.
    """

    name: str
    rules: tuple[Rule, ...]
    without: str = ""
    always: str = ""

    def __post_init__(self) -> None:
        for rule in self.rules:
            demand_proof(rule)

    def run(self, context: Context) -> int:
        """Apply the rules whose exactness is allowed; returns the number of rewrites."""
        rules = [rule for rule in self.selected(context.approximate) if self._is_worth_it(rule, context)]
        if not rules:
            return 0
        rewriter = Rewriter(
            context.model, context.facts, context.target, context.log, context.inspector, context.debugging
        )
        count = rewriter.run(rules)
        if count:
            initializers_to_nodes(context)
        return count

    def _is_worth_it(self, rule: Rule, context: Context) -> bool:
        costs = context.target.costs if isinstance(context.target, Target) else None
        objection = costs.objection(rule.name) if costs is not None and rule.name not in self.always.split() else None
        if objection is not None and _may_match(rule, context):
            context.note(f'{rule.name} is not applied: {objection}; {self.name}{{always="{rule.name}"}} applies it')
        return objection is None

    def selected(self, approximate: bool) -> list[Rule]:
        """The rules that may run: approximations only if allowed, none that is left out by name."""
        left_out = self.without.split()
        return [
            rule
            for rule in self.rules
            if rule.name not in left_out and (approximate or rule.exactness is not Exactness.APPROXIMATE)
        ]


def _may_match(rule: Rule, context: Context) -> bool:
    """Whether the rule would be applied somewhere in the model as it is now."""
    return any(
        isinstance(rule.matcher.match(output, context.facts, rule.residual), Match)
        for scope in context.scopes()
        for node in scope.graph
        if node.op_type in rule.matcher.heads and rule.matcher.may_match(node)
        for output in node.outputs
    )
