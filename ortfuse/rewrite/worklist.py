"""Worklist: the nodes to visit and the rules to try at each; a node is revisited only after a change near it."""

from __future__ import annotations

import itertools
import random
from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

import onnx_ir as ir

from ortfuse.ir.walk import graphs
from ortfuse.rewrite.lazily_loaded_rule import RuleEntry
from ortfuse.rewrite.pattern.match_siblings import MOST_TRIED

_MOST_BESIDE = MOST_TRIED + 1
"""The most users of a value that may have a new one as a further root."""

_MANY_USERS = 32
"""More users than the values inside of a match have."""


class Worklist:
    """The nodes of a model that rules may still apply to, consumers first, with rules indexed by the operators at their root.

    Args:
        model: The model.
        rules: The rules, in the order in which they are tried on a node.
        seed: If given, nodes are taken in a random order that depends on the seed, instead of consumers first.
    """

    def __init__(self, model: ir.Model, rules: Sequence[RuleEntry], seed: int | None) -> None:
        self._random = None if seed is None else random.Random(seed)
        self._queue: deque[ir.Node] = deque()
        self._reach = max((rule.reach for rule in rules), default=0)
        self._queued: set[ir.Node] = set()
        self._operators: Counter[str] = Counter()
        self._rules: dict[str, list[RuleEntry]] = defaultdict(list)
        self._applicable: dict[str, list[RuleEntry]] = {}
        every = [node for graph in graphs(model) for node in graph]
        self.size = len(every)
        self.count(every)
        if not any(self._may_apply(rule) for rule in rules):
            return  # as for most passes: there is nothing to look at, and nothing will be added
        for rule in rules:
            for head in rule.heads:
                self._rules[head].append(rule)
        # Consumers first, because the outermost of several possible matches is the largest.
        for node in reversed(every):
            self.push(node)

    def nodes(self) -> Iterator[ir.Node]:
        """The nodes at which some rule may match, including those pushed meanwhile, until none are left."""
        while self._queue:
            if self._random is not None:
                self._queue.rotate(self._random.randrange(len(self._queue)))
            node = self._queue.popleft()
            if node not in self._queued:
                continue  # it was moved to the front before
            self._queued.discard(node)
            if node.graph is not None:
                yield node

    def leave_out(self, rule: RuleEntry) -> None:
        """Try a rule no more."""
        for head in rule.heads:
            self._rules[head] = [other for other in self._rules[head] if other is not rule]
        self._applicable.clear()

    def rules(self, node: ir.Node) -> Iterator[RuleEntry]:
        """The rules to try on a node, up to the first that must wait for a consumer of the node, which is then revisited."""
        above = [consumer for consumer in _consumers(node) if consumer in self._queued]
        if not above:
            yield from self._applicable_to(node.op_type)
            return
        for rule in self._rules[node.op_type]:
            if any(consumer.op_type in rule.heads for consumer in above):
                # A match with more of the rule's optional parts may have its root there; later rules wait as well.
                self._queued.add(node)
                self._queue.extendleft([node, *above])
                return
            if self._may_apply(rule):
                yield rule

    def _applicable_to(self, op_type: str) -> list[RuleEntry]:
        """The rules for an operator that may apply, as long as the model gets no operator that it never had."""
        found = self._applicable.get(op_type)
        if found is None:
            found = self._applicable[op_type] = [rule for rule in self._rules[op_type] if self._may_apply(rule)]
        return found

    def _may_apply(self, rule: RuleEntry) -> bool:
        """Whether the model has had all operators of the rule: an early reject.

        Counted ones may have been removed meanwhile; never counting down keeps this cheap.
        """
        return all(op_type in self._operators for op_type in rule.required)

    def count(self, nodes: Sequence[ir.Node]) -> None:
        """Count the operators of new nodes."""
        known = len(self._operators)
        self._operators.update([node.op_type for node in nodes])
        if len(self._operators) != known:
            self._applicable.clear()

    def push(self, node: ir.Node | None) -> None:
        """Visit a node again, if a rule may match there."""
        if node is not None and node.op_type in self._rules and node not in self._queued:
            self._queued.add(node)
            self._queue.append(node)

    def push_siblings(self, nodes: Iterable[ir.Node]) -> None:
        """Visit again what may be a root beside nodes that are new or have another input, in patterns with several roots.

        If a value has many users, only the last ones are tried: a new user comes behind them.
        """
        level = list(nodes) if self._reach else []
        seen = set(level)
        for _ in range(self._reach):
            values = dict.fromkeys(value for node in level for value in node.inputs if value is not None)
            users = [use.node for value in values for use in list(value.uses())[-_MOST_BESIDE:]]
            for node in dict.fromkeys(users):
                if node not in seen:
                    seen.add(node)
                    self.wake_users(node)
            level = [producer for value in values if (producer := value.producer()) is not None][:_MOST_BESIDE]

    def drop(self, nodes: Iterable[ir.Node]) -> None:
        """Do not visit nodes: they are in the body of one that is gone."""
        self._queued.difference_update(nodes)

    def wake_users(self, node: ir.Node | None) -> None:
        """Visit again `node`, which lost a user, and every node whose match could reach it.

        A match that has all of many users is none: such nodes are not woken each time that one of them goes.
        """
        if node is not None and any(len(output.uses()) > _MANY_USERS for output in node.outputs):
            self.push(node)
        else:
            self.wake(node)

    def wake(self, node: ir.Node | None) -> None:
        """Visit again `node` and every node whose match could reach it."""
        if node is None:
            return
        self.push(node)
        level, seen = [node], {node}
        for _ in range(self._depths.get(node.op_type, 0)):
            # In the order of their uses: that of a set would be another in each run.
            above = dict.fromkeys(
                use.node
                for below in level
                for output in below.outputs
                for use in output.uses()
                if use.node.op_type in self._depths and use.node not in seen
            )
            if not above:
                break
            seen.update(above)
            level = list(above)
            for consumer in level:
                self.push(consumer)

    @cached_property
    def _depths(self) -> dict[str, int]:
        """How far below the root of some pattern each operator may be."""
        found: dict[str, int] = {}
        for rule in itertools.chain.from_iterable(self._rules.values()):
            for op_type, depth in rule.depths.items():
                found[op_type] = max(found.get(op_type, 0), depth)
        return found


def _consumers(node: ir.Node) -> list[ir.Node]:
    return [use.node for output in node.outputs for use in output.uses()]
