"""Rewriter: apply a set of rules to a fixed point, driven by a worklist, through the editor."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ortfuse.analysis.facts import Facts
from ortfuse.errors import RewriteError
from ortfuse.ir.editor import RULE_KEY, Editor
from ortfuse.ir.preserved_nodes import keep
from ortfuse.ir.refusal import Refusal, refuse
from ortfuse.ir.schemas import droppable_outputs, used_length
from ortfuse.ir.traits import CONTROL_FLOW, MOVES, has
from ortfuse.ir.walk import nested_nodes, used_values
from ortfuse.rewrite.invariants import Debugging
from ortfuse.rewrite.lazily_loaded_rule import DeferredRule, RuleEntry
from ortfuse.rewrite.magic_number_rounding import merged_with_others
from ortfuse.rewrite.pattern.compiled_pattern import producers
from ortfuse.rewrite.pattern.language import Pattern
from ortfuse.rewrite.pattern.match_operators import Match, Miss
from ortfuse.rewrite.pattern.match_result import Ranges
from ortfuse.rewrite.profitability import Chooser, FirstLegal
from ortfuse.rewrite.replacement_candidate import Candidate, Legality, Outputs, author_of
from ortfuse.rewrite.rewrite_log import Event, Log, Step
from ortfuse.rewrite.rule import Rule, demand_rule_test
from ortfuse.rewrite.worklist import Worklist


@dataclass
class Rewriter:
    """Run rules over every graph of a model.

    Attributes:
        editor: Makes the changes to the model.
        target: Decides which nodes may be in the result.
        log: Rewrites, statistics per rule and, on request, near misses.
        debugging: Extra checks and random orders for debugging.
        chooser: Decides whether a legal rewrite is worthwhile, and which of several to make.
        ranges: The ranges that values were seen to have, for rules that ask.
        where: Whether a rule is to be tried with a value as its root; by default each is tried everywhere.
        goes_on: Told of a rule that fails and its error, whether the others go on without it; by default they do not.
    """

    editor: Editor
    target: Legality
    log: Log = field(default_factory=Log)
    debugging: Debugging = field(default_factory=Debugging)
    chooser: Chooser = field(default_factory=FirstLegal)
    ranges: Ranges | None = None
    where: Callable[[Rule, ir.Value], bool] | None = None
    goes_on: Callable[[Rule, Exception], bool] | None = None

    def run(self, rules: Iterable[RuleEntry]) -> int:
        """Apply `rules` until none applies; returns the number of rewrites. Rules are loaded when they are tried.

        Raises:
            RuleError: A rule has no rule test, or its code fails.
            RewriteError: The rules undo each other.
        """
        chosen = list(rules)
        for rule in chosen:
            if not isinstance(rule, DeferredRule):
                demand_rule_test(rule)
        assert isinstance(self.editor.facts, Facts)
        self._facts = self.editor.facts
        self._unsorted: set[ir.Graph] = set()
        quirks = self.target.quirks
        chosen = [rule for rule in chosen if rule.because is None or rule.because in quirks]
        self._work = Worklist(self.editor.model, chosen, self.debugging.seed)
        limit, count = 1000 + 30 * self._work.size, 0
        for node in self._work.nodes():
            above = producers(node)
            if any(self._succeeds(rule, node, above) for rule in self._work.rules(node)):
                count += 1
                if count > limit:
                    raise _endless(self.log.events)
        for graph in self._unsorted:
            self.editor.sort(graph)
        return count

    def _succeeds(self, entry: RuleEntry, node: ir.Node, above: Sequence[str]) -> bool:
        """Apply a rule; one that fails leaves the graph as it was, and is not tried again if the others go on."""
        if not self.log.explains(entry.name) and not entry.may_match(node, above):
            return False
        rule = entry.loaded()
        try:
            return self._attempt(rule, node)
        except Exception as error:
            if self.goes_on is None or not self.goes_on(rule, error):
                raise
            self._work.leave_out(entry)
            return False

    def _attempt(self, rule: Rule, node: ir.Node) -> bool:
        """Apply a rule at an output of a node; returns whether it was applied."""
        if self.where is not None and not any(self.where(rule, output) for output in node.outputs):
            return False
        started = time.perf_counter()
        statistics = self.log.statistics(rule.name, rule.is_refinement)
        statistics.attempts += 1
        applied = False
        for output in node.outputs:
            if (output.uses() or output.is_graph_output()) and (self.where is None or self.where(rule, output)):
                with author_of(rule, output):
                    found = rule.matcher.match(
                        output,
                        self._facts,
                        rule.allow_extra_operands,
                        self.target.quirks,
                        self.ranges,
                        target=self.target.spec,
                    )
                applied = isinstance(found, Match) and self._apply(rule, found, started)
                if isinstance(found, Miss) and found.matched > 0 and self._is_worth_a_word(rule, found):
                    step: Step = "guards" if found.whole else "pattern"
                    self.log.miss(rule.name, output, step, found.matched, found.refusal, found.nodes)
                if applied:
                    break
        statistics.seconds += time.perf_counter() - started
        return applied

    def _apply(self, rule: Rule, match: Match, started: float) -> bool:
        refusal = self.chooser.refusal(rule, match) or self._has_kernel(rule, match)
        if refusal is None and not self.editor.is_users(rule):
            refusal = merged_with_others(rule, match)
        refusals = [] if refusal is None else [refusal]
        if refusal is None:
            refused = self._replaced(rule, match, started)
            if refused is None:
                self.log.statistics(rule.name).hits += 1
                return True
            refusals += refused
        limited = rule.because is not None and refusals[0].code == "kernel_limit"
        if limited or self.log.explains(rule.name) or rule.notable < sys.maxsize:
            # Report what was in the way of the preferred replacement, not of a fallback.
            self.log.miss(rule.name, match.root, "replacement", len(match.nodes), refusals[0], match.nodes)
        return False

    def _is_worth_a_word(self, rule: Rule, miss: Miss) -> bool:
        """Whether a miss is kept: each of a rule that is explained, of others those that come near."""
        near = miss.matched >= rule.notable or (miss.whole and rule.notable < sys.maxsize)
        return near or self.log.explains(rule.name)

    def _has_kernel(self, rule: Rule, match: Match) -> Refusal | None:
        """A refusal if a rule would spell out an operator for which the target has a kernel, or that was asked for."""
        node = match.root.producer()
        if not rule.spells_out or node is None:
            return None
        imports = self.editor.scope_of(node.graph).root.opset_imports
        inlined = self.target.inlines(node, imports, self._facts)
        lacks = inlined or self._lacks(node, imports)
        # What a rule made for another target, in a run before this one, may have neither a kernel nor a definition here.
        if RULE_KEY in node.metadata_props and (inlined or not lacks):
            return refuse(
                "needless", match.root, found=f"{node.metadata_props[RULE_KEY]} made it of what was spelled out"
            )
        if lacks:
            return None
        return refuse("needless", match.root, found=f"there is a kernel for {node.op_type}")

    def _lacks(self, node: ir.Node, imports: dict[str, int]) -> bool:
        """Whether the target has no kernel for a node.

        A kernel of com.microsoft that refuses some sizes is one: a node whose sizes are open may never have these.
        """
        if self.target.check_node(node, imports, self._facts) is None:
            return False
        if not node.domain or self.target.limit(node, self._facts) is None:
            return True
        return self.target.certain_limit(node, self._facts) is not None

    def _replaced(self, rule: Rule, match: Match, started: float) -> list[Refusal] | None:
        """Make the first replacement that is possible; if none is, the refusal of each.

        They come in the order of the rule or, if they are measured, the fastest first; those that need a higher opset than
        the model has are tried only if nothing else is legal (or worthwhile).
        """
        found = list(self.chooser.candidates(rule))
        if len(found) > 1 and self.chooser.measures(rule):
            found.sort(key=lambda replacement: -(self._measured(rule, match, replacement) or 0.0))
        refused: dict[int, Refusal] = {}
        for may_raise in (True,) if rule.may_raise_opset else (False, True):
            for number, replacement in enumerate(found):
                if number in refused and refused[number].code != "opset":
                    continue
                refusal = self._replace(rule, match, replacement, may_raise, started)
                if refusal is None:
                    return None
                refused[number] = refusal
        return list(refused.values())

    def _measured(self, rule: Rule, match: Match, replacement: Pattern) -> float | None:
        """The speedup of a replacement over the replaced nodes; `None` if it is not legal or cannot be measured."""
        candidate = Candidate(rule, match, replacement, self.editor, self._facts)
        try:
            with self.editor.change(rule.name, rule=rule, match=match, nodes=match.nodes) as change:
                found = candidate.build(self.target, may_raise=True)
                change.cancel(refuse("left_out", match.root, found="it was built to be measured"))
                return None if isinstance(found, Refusal) else self.chooser.speedup(change.edit(found))
        finally:
            self.editor.discard(candidate.nodes)

    def _replace(
        self, rule: Rule, match: Match, replacement: Pattern, may_raise: bool, started: float
    ) -> Refusal | None:
        """Replace what was matched; if that is not possible, nothing changes and a refusal is returned."""
        candidate = Candidate(rule, match, replacement, self.editor, self._facts)
        outputs: Outputs = []
        try:
            with self.editor.change(rule.name, rule=rule, match=match, nodes=match.nodes) as change:
                found = candidate.build(self.target, may_raise, self.chooser.insists(rule))
                refusal = found if isinstance(found, Refusal) else self.chooser.objection(change.edit(found))
                if refusal is not None:
                    change.cancel(refusal)
                elif not isinstance(found, Refusal):
                    outputs = found
                    neighbours = [use.node for old, _ in outputs for use in old.uses()]
                    self._put_in_place(candidate.nodes, outputs)
                    removed, above = self._sweep(match.nodes)
        finally:
            self.editor.discard(candidate.nodes)
        if change.refusal is not None:
            return change.refusal
        if len(outputs) > 1:
            assert change.graph is not None
            self._unsorted.add(change.graph)
        if rule.because is not None and all(has(node, MOVES) for node in candidate.nodes):
            keep(candidate.nodes, f"{rule.name}, which avoids a bug of the runtime")
        self._look_again(above, neighbours, candidate.nodes)
        self.debugging.inspect(self.editor.model, self._facts, rule.name, self._unsorted)
        self.log.events.append(
            Event(
                rule.name,
                outputs[0][1].name or "?",
                tuple(node.op_type for node in removed),
                tuple(node.op_type for node in candidate.nodes),
                time.perf_counter() - started,
            )
        )
        return None

    def _put_in_place(self, nodes: Sequence[ir.Node], outputs: Outputs) -> None:
        """Replace old values by new ones, and drop optional outputs that nothing uses."""
        wanted = [new for _, new in outputs]
        for node in nodes:
            if len(node.outputs) > 1:
                self._drop_unused_outputs(node, wanted)
        for old, new in outputs:
            self.editor.replace(old, new)

    def _drop_unused_outputs(self, node: ir.Node, wanted: list[ir.Value]) -> None:
        """Drop optional outputs that nothing uses: the runtime would compute them."""
        droppable = droppable_outputs(node)
        for number, output in enumerate(node.outputs):
            if number in droppable and not output.uses() and output not in wanted:
                self.editor.rename(output, "")
        self.editor.resize_outputs(node, used_length(node))

    def _sweep(self, nodes: Iterable[ir.Node]) -> tuple[list[ir.Node], list[ir.Node | None]]:
        """Remove the unused ones of `nodes` and whatever only they used; returns those and the producers of their inputs."""
        removed: list[ir.Node] = []
        above: list[ir.Node | None] = []
        pending = list(nodes)
        matched = set(pending)
        while pending:
            node = pending.pop()
            if node.graph is None or any(out.uses() or out.is_graph_output() for out in node.outputs):
                continue
            if node.op_type in CONTROL_FLOW and node not in matched:
                continue  # nodes with subgraphs are left to dead-code elimination, unless a pattern looked into them
            self._work.drop(nested_nodes(node))
            producers = [value.producer() for value in used_values(node)]
            self.editor.remove(node)
            removed.append(node)
            pending += [producer for producer in producers if producer is not None]
            above += producers
        return removed, above

    def _look_again(
        self, above: Iterable[ir.Node | None], neighbours: Iterable[ir.Node], added: Sequence[ir.Node]
    ) -> None:
        """Queue every node at which a rule may match now."""
        self._work.count(added)
        for node in above:
            # A value that lost a use may now be private to a pattern that it blocked before.
            self._work.wake_users(node)
        neighbours = list(neighbours)
        for node in neighbours:
            self._work.push(node)
        self._work.push_siblings(
            node for node in (*above, *neighbours, *added) if node is not None and node.graph is not None
        )
        for node in added:
            self._work.wake(node)
            for value in node.inputs:
                if value is not None:
                    self._work.push(value.producer())


def _endless(events: Sequence[Event]) -> RewriteError:
    recent = Counter(event.rule for event in events[-200:])
    rules = " and ".join(name for name, _ in recent.most_common(3))
    sites = ", ".join(dict.fromkeys(event.site for event in events[-8:]))
    text = f"the rules {rules} undo each other without end (around {sites}); change one of them or leave it out"
    return RewriteError(text, recent.most_common(1)[0][0])
