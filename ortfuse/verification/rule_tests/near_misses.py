"""Near misses of an instance: the same model with one thing changed, so that the rule may no longer be right."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ortfuse.analysis.facts import Facts
from ortfuse.verification.rule_tests.instance import Instance
from ortfuse.verification.rule_tests.near_miss_constants import number_changes
from ortfuse.verification.rule_tests.near_miss_graphs import attribute_changes, graph_changes
from ortfuse.verification.rule_tests.near_miss_inputs import hidden, input_changes, shape_changes, undeclared

Change = Callable[[Instance], bool]
"""Changes a copy of the instance in place; false if there was nothing to change."""


@dataclass(frozen=True)
class Possible:
    """A near miss that is made when it is asked for: an instance, the change, and a short description of it."""

    instance: Instance
    text: str
    change: Change

    def made(self) -> Instance | None:
        """The changed copy; `None` if there was nothing to change."""
        given = self.instance
        copy = dataclasses.replace(
            given, model=given.model.clone(), text=self.text, shapes=dict(given.shapes), fixed=dict(given.fixed),
            pinned=dict(given.pinned),
        )  # fmt: skip
        if not self.change(copy):
            return None
        _forget_results(copy)
        return copy


def near_misses(instance: Instance, seen: set[str] | None = None, numbers_only: bool = False) -> Iterator[Possible]:
    """Every near miss of `instance`.

    Those whose description is in `seen` are skipped, and the others added to it: spellings of one pattern share most of
    them. `numbers_only` restricts them to changes of one-element constants: scales, epsilons, mask fillers.
    """
    names, facts = node_names(instance), Facts(instance.model)
    changes: Iterable[tuple[str, Change]] = number_changes(instance, names, facts, scalars_only=numbers_only)
    if not numbers_only:
        changes = itertools.chain(changes, graph_changes(instance, names, facts), shape_changes(instance, names))
    for text, change in changes:
        if seen is not None:
            if text in seen:
                continue
            seen.add(text)
        yield Possible(instance, f"{text}, {instance.text}" if numbers_only else text, change)


def near_misses_with_less_known(instance: Instance) -> Iterator[Possible]:
    """Near misses with two changes, one of which hides information: a guard that cannot know must refuse."""
    for known in ("ranks", "types"):
        less = dataclasses.replace(instance, model=instance.model.clone(), shapes=dict(instance.shapes))
        text = "all inputs are of unknown rank" if known == "ranks" else "all inputs are of unknown rank and type"
        for position in range(len(less.model.graph.inputs)):
            (undeclared if known == "ranks" else hidden)(position)(less)
        less.text = text
        names = node_names(less)
        numbers: Iterable[tuple[str, Change]] = ()
        if known == "ranks":
            numbers = number_changes(less, names, Facts(less.model), at_run_time=False)
        changes = itertools.chain(numbers, attribute_changes(less, names), input_changes(less))
        for other, change in changes:
            yield Possible(less, f"{other}, {text}", change)


def evenly(found: Sequence[Possible], most_nodes: int | None) -> Sequence[Possible]:
    """All, or as many as have so many nodes together, with the same distance from one to the next."""
    nodes = max((len(one.instance.model.graph) for one in found), default=0)
    if most_nodes is None or len(found) * nodes <= most_nodes:
        return found
    count = -(-most_nodes // nodes)
    return [found[number * len(found) // count] for number in range(count)]


def _forget_results(instance: Instance) -> None:
    """Drop the declared types and shapes of the outputs, which the change may have made wrong."""
    for value in instance.model.graph.outputs:
        value.type = value.shape = None


def node_names(instance: Instance) -> list[str]:
    """The names of nodes in descriptions of near misses: the operator, numbered if there are several of its kind."""
    counts: Counter[str] = Counter()
    names = []
    for node in instance.model.graph:
        counts[node.op_type] += 1
        names.append(node.op_type if counts[node.op_type] == 1 else f"{node.op_type} {counts[node.op_type]}")
    return names
