"""Select nodes by the user's patterns: `op:Conv*`, `node:/encoder/*`, `module:encoder.layer.0`, `value:logits`.

A pattern without a kind matches any of these. `*`, `?` and `[...]` are wildcards; a text that is equal to a name matches it.
A module stands for all that is in it, a node with bodies (If, Loop, Scan) for all nodes of these.

Nodes are marked in the original model, in their metadata. A node that a rewrite makes takes over the marks of those that it
stands for (`ortfuse.ir.graph_transaction`): it is excluded if one of these is, and among those asked for if one of these is.
"""

from __future__ import annotations

import difflib
import fnmatch
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ortfuse.errors import OptionError
from ortfuse.ir import walk
from ortfuse.ir.graph_transaction import EXCLUDED_KEY, ONLY_KEY
from ortfuse.ir.nn_module_of_node import SCOPES_KEY, module_of

CLASSES_KEY = "pkg.torch.onnx.class_hierarchy"
"""Metadata by PyTorch: the class of each module around a node, and then that of the node itself."""


def _names(node: ir.Node) -> Iterator[str]:
    if node.name:
        yield node.name


def _operators(node: ir.Node) -> Iterator[str]:
    yield node.op_type
    yield f"{node.domain or 'ai.onnx'}.{node.op_type}"


def _values(node: ir.Node) -> Iterator[str]:
    return (value.name for value in node.outputs if value.name)


def _modules(node: ir.Node) -> Iterator[str]:
    """The modules around a node, by their paths."""
    parts = module_of(node).split(".")
    yield from filter(None, itertools.accumulate(parts, lambda path, part: f"{path}.{part}"))
    yield from filter(None, _listed(node, SCOPES_KEY)[:-1])


def _classes(node: ir.Node) -> Iterator[str]:
    """The classes of the modules around a node, with and without where they are defined."""
    for name in _listed(node, CLASSES_KEY)[:-1]:
        yield from (name, name.rpartition(".")[2])


def _listed(node: ir.Node, key: str) -> list[str]:
    text = node.metadata_props.get(key, "")
    return [part.strip("'\"") for part in text.strip("[]").split(", ")] if text else []


KINDS: dict[str, Callable[[ir.Node], Iterator[str]]] = {
    "node": _names, "op": _operators, "module": _modules, "class": _classes, "value": _values,
}  # fmt: skip
"""The kinds of names that a pattern may have, by the word before its colon."""


def patterns_of(given: str | Sequence[str]) -> Sequence[str]:
    """A pattern, or several, as several."""
    return (given,) if isinstance(given, str) else tuple(given)


def is_selected(pattern: str, node: ir.Node) -> bool:
    """Whether a pattern matches a node itself."""
    kind, colon, text = pattern.partition(":")
    of_kind = KINDS.get(kind) if colon else None
    if of_kind is not None:
        return any(_is(name, text) for name in of_kind(node))
    return any(_is(name, pattern) for names in KINDS.values() for name in names(node))


def _is(name: str, text: str) -> bool:
    return name == text or fnmatch.fnmatchcase(name, text)


def mark(model: ir.Model, only: Sequence[str], exclude: Sequence[str]) -> set[str]:
    """Mark the nodes that patterns match, and all in their bodies; returns the patterns that match any.

    Args:
        model: The model, of which the metadata of nodes are changed.
        only: Patterns of what alone may be changed.
        exclude: Patterns of what may not.
    """
    found: set[str] = set()
    for node, around in _with_owners(model) if only or exclude else ():
        for key, patterns in ((ONLY_KEY, only), (EXCLUDED_KEY, exclude)):
            matching = next((one for one in patterns if any(is_selected(one, each) for each in (node, *around))), None)
            if matching is not None:
                node.metadata_props.setdefault(key, matching)
            found.update(one for one in patterns if one == matching or is_selected(one, node))
    return found


def objection(node: ir.Node, only: Sequence[str]) -> str:
    """Why a node may not be changed, by its marks; empty if it may.

    Args:
        node: A node.
        only: The patterns of what alone may be changed; none for all nodes.
    """
    excluded = node.metadata_props.get(EXCLUDED_KEY)
    if excluded is not None:
        return f"it is excluded by '{excluded}'"
    if not only or ONLY_KEY in node.metadata_props:
        return ""
    return _not_among(only)


def _not_among(only: Sequence[str]) -> str:
    return f"only {', '.join(repr(one) for one in only)} may be changed"


@dataclass(frozen=True)
class Selected:
    """The values of a model whose nodes may be changed.

    Attributes:
        excluded: Why some may not, by their names.
        only: The names of those that alone may be; `None` for all.
        reason: Why the others may not.
    """

    excluded: Mapping[str, str] = field(default_factory=dict)
    only: Collection[str] | None = None
    reason: str = ""

    def objection(self, names: Iterable[str]) -> str:
        """Why what computes these values may not be changed; empty if it may: none is excluded, and one is among the others."""
        names = list(names)
        excluded = next((self.excluded[name] for name in names if name in self.excluded), "")
        if excluded or self.only is None or any(name in self.only for name in names):
            return excluded
        return self.reason


EVERYTHING = Selected()


def unmark(model: ir.Model, only: Sequence[str]) -> Selected:
    """Take all marks off; returns what they say of the values of the main graph.

    Args:
        model: The model, of which the metadata of nodes are changed.
        only: The patterns of what alone may be changed; none for all nodes.
    """
    values = {value.name or "": node for node in model.graph for value in node.outputs}
    excluded = {name: objection(node, ()) for name, node in values.items() if EXCLUDED_KEY in node.metadata_props}
    selected = frozenset(name for name, node in values.items() if ONLY_KEY in node.metadata_props)
    for node in walk.nodes(model):
        for key in (ONLY_KEY, EXCLUDED_KEY):
            node.metadata_props.pop(key, None)
    return Selected(excluded, selected if only else None, _not_among(only))


def demand_matches(option: str, patterns: Sequence[str], found: set[str], model: ir.Model) -> None:
    """Refuse patterns that match nothing: a misspelt one would exclude nothing.

    Args:
        option: The option that they are of.
        patterns: The patterns.
        found: Those that match.
        model: The model as the user knows it.

    Raises:
        OptionError: One matches no node.
    """
    for pattern in patterns:
        if pattern not in found:
            raise OptionError(option, _no_match(pattern, list(walk.nodes(model))))


def _with_owners(model: ir.Model) -> Iterator[tuple[ir.Node, tuple[ir.Node, ...]]]:
    """The nodes of a model, each with those around it."""
    waiting: list[tuple[ir.Graph, tuple[ir.Node, ...]]] = [(graph, ()) for graph in walk.roots(model)]
    while waiting:
        graph, around = waiting.pop()
        for node in graph:
            yield node, around
            waiting += [(body, (*around, node)) for body in walk.subgraphs(node)]


def _no_match(pattern: str, nodes: Sequence[ir.Node]) -> str:
    """The remedy for a pattern that matches nothing."""
    kind, colon, text = pattern.partition(":")
    kinds = [kind] if colon and kind in KINDS else list(KINDS)
    names = dict.fromkeys(name for one in kinds for node in nodes for name in KINDS[one](node))
    near = difflib.get_close_matches(text if len(kinds) == 1 else pattern, list(names)[:_MOST], n=3, cutoff=0.4)
    hint = f"; names like it are {', '.join(near)}" if near else ""
    return f"'{pattern}' matches no node, operator, module, class or value of the model{hint}"


_MOST = 2000
"""How many names are compared with one that is not there."""
