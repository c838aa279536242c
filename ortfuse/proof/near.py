"""Near misses of an instance: the same model with one thing changed, so that the rule may no longer be right."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from ortfuse.proof.instance import Instance
from ortfuse.proof.near_graph import graph_changes
from ortfuse.proof.near_numbers import number_changes
from ortfuse.proof.near_shapes import shape_changes

Change = Callable[[Instance], bool]
"""Changes a copy of the instance in place; false if there was nothing to change."""


def near_misses(instance: Instance, seen: set[str] | None = None, numbers_only: bool = False) -> Iterator[Instance]:
    """Every near miss of `instance`, each a changed copy with a few words on what was changed.

    Those whose words are in `seen` are left out, the others noted there: spellings of one pattern have most in common.
    `numbers_only` leaves out all but those of constants of one element: scales, epsilons, mask fillers.
    """
    names = node_names(instance)
    changes: Iterable[tuple[str, Change]] = number_changes(instance, names, scalars_only=numbers_only)
    if not numbers_only:
        changes = itertools.chain(changes, graph_changes(instance, names), shape_changes(instance, names))
    for text, change in changes:
        if seen is not None:
            if text in seen:
                continue
            seen.add(text)
        copy = dataclasses.replace(
            instance, model=instance.model.clone(), text=f"{text}, {instance.text}" if numbers_only else text,
            shapes=dict(instance.shapes), fixed=dict(instance.fixed), pinned=dict(instance.pinned),
        )  # fmt: skip
        if change(copy):
            yield copy


def node_names(instance: Instance) -> list[str]:
    """What near misses call the nodes: the operator, and which of several of its kind."""
    counts: Counter[str] = Counter()
    names = []
    for node in instance.model.graph:
        counts[node.op_type] += 1
        names.append(node.op_type if counts[node.op_type] == 1 else f"{node.op_type} {counts[node.op_type]}")
    return names
