"""Transactions: changes of a graph that inspectors approve and that are applied as a whole or not at all."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

import onnx_ir as ir

from ortfuse.ir.edit import Edit, Guard, Inspector, needed_elsewhere, sides_of
from ortfuse.ir.journal import Flip, Rewired
from ortfuse.ir.nn_module_of_node import MODULE_KEY, common_module, module_of
from ortfuse.ir.preserved_nodes import keep, keeper, taken_apart
from ortfuse.ir.refusal import Refusal
from ortfuse.ir.walk import Scope, scopes

RULE_KEY = "ortfuse.rule"
NODES_KEY = "ortfuse.nodes"
"""Metadata of a node made by a rule: the rule, and the names of the original nodes it stands for."""

ONLY_KEY, EXCLUDED_KEY = "ortfuse.only", "ortfuse.excluded"
"""Metadata of a node that the user has selected (`ortfuse.ir.selection`), which go over to what takes its place."""


P = ParamSpec("P")
R = TypeVar("R")
E = TypeVar("E", bound="Changes")


class Listener(Protocol):
    """Follow a graph while it is edited; the facts do this."""

    def record(self, journal: list[Flip]) -> None:
        """From now on, append to the journal an entry that undoes each thing that is learned."""

    def node_added(self, node: ir.Node) -> None:
        """A node was added to a graph."""

    def node_removed(self, node: ir.Node) -> None:
        """A node was removed from its graph."""

    def value_replaced(self, old: ir.Value, new: ir.Value) -> None:
        """The users of a value now use another one, which is the same in every run."""

    def type_changed(self, value: ir.Value) -> None:
        """The declared type or shape of a value has changed."""

    def renew(self) -> None:
        """The whole model has to be analysed anew, because opsets were raised."""


class Recorder(Protocol):
    """Keep a record of changes."""

    def changed(self, change: Change) -> None:
        """A change is final."""

    def refuse(self, change: Change, refusal: Refusal) -> None:
        """A change is about to be undone."""


class Change:
    """Operations that are applied together or not at all.

    Attributes:
        author: The rule or pass that makes the change.
        rule: The rule, if it is a rewrite.
        match: What the rule matched.
        nodes: The nodes that compute what is replaced; if not given, they are found from the values.
        instead: The nodes that compute the replacement and existed before the change.
        witnesses: Nodes that fail in every run in which the values are not equal; see `Edit`.
        added: The nodes that were added to a graph.
        removed: The nodes that were removed from a graph.
        replaced: The values that were replaced, each with its replacement.
        origins: For new nodes that stand for one old node, that node.
        refusal: Why the change was undone.
        site: The value that reports use to refer to a change that was undone.
    """

    __slots__ = (
        "_editor", "_outer", "_spans", "_start", "added", "author", "graph", "instead", "match", "nodes", "origins",
        "refusal", "removed", "replaced", "rule", "site", "witnesses",
    )  # fmt: skip

    def __init__(
        self,
        editor: Changes,
        author: str,
        rule: Any,
        match: Any,
        nodes: Sequence[ir.Node],
        instead: Sequence[ir.Node],
        witnesses: Sequence[ir.Node],
    ) -> None:
        self.author, self.rule, self.match = author, rule, match
        self.nodes, self.instead, self.witnesses = nodes, instead, witnesses
        self.added: dict[ir.Node, None] = {}
        self.removed: list[ir.Node] = []
        self.replaced: list[tuple[ir.Value, ir.Value]] = []
        self.origins: dict[ir.Node, ir.Node] = {}
        self.graph: ir.Graph | None = None
        self.refusal: Refusal | None = None
        self.site = "?"
        self._editor = editor
        self._spans: list[tuple[int, int]] = []

    def __enter__(self) -> Change:
        editor = self._editor
        self._outer, editor._open = editor._open, self
        self._start = len(editor._journal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        editor = self._editor
        editor._open = self._outer
        done = len(editor._journal) > self._start
        if kind is None and self.refusal is None and done:
            self._annotate()
            self.refusal = self._objection() or self._fault()
            if self.refusal is not None and editor.recorder is not None:
                editor.recorder.refuse(self, self.refusal)
        if kind is not None or self.refusal is not None:
            editor._undo(self._start)
        elif done and editor.recorder is not None:
            editor.recorder.changed(self)
        if self._outer is None:
            editor._journal.clear()
        else:
            self._outer._note_inner(self)

    def __bool__(self) -> bool:
        return self.refusal is None

    def cancel(self, refusal: Refusal) -> None:
        """Undo the change when it ends, because its author finds that it is not possible."""
        self.refusal = refusal

    def edit(self, outputs: Sequence[tuple[ir.Value, ir.Value]]) -> Edit:
        """The change as an `Edit` in which the second of each pair of values replaces the first."""
        graph = self.graph
        if graph is None:
            places = (*self.nodes, *(old.producer() for old, _ in outputs), *self.added)
            graph = next((node.graph for node in places if node is not None and node.graph is not None), None)
        scope = self._editor.scope_of(graph)
        nodes: Sequence[ir.Node] = self.nodes or self.removed
        added: Sequence[ir.Node] = [*self.instead, *self.added]
        if not self.nodes and outputs:
            nodes, added = sides_of(outputs, added)
        facts = self._editor.facts
        return Edit(self.author, nodes, added, outputs, scope, facts, self.rule, self.match, self.witnesses)

    def _objection(self) -> Refusal | None:
        """The inspectors' objection, if any; they see the graph with both sides in it, since so far nodes were only added."""
        editor = self._editor
        inspectors = [*editor.inspectors, *(editor.checks if editor.checks and editor.is_users(self.rule) else ())]
        if not inspectors:
            return None
        journal = editor._journal
        spans = [journal[start:end] for start, end in self._spans]
        for flips in reversed(spans):
            for flip in reversed(flips):
                flip()
        edit = self.edit(self._outputs())
        self.site = edit.name
        found = next((no for one in inspectors if (no := one.objection(edit)) is not None), None)
        for flips in spans:
            for flip in flips:
                flip()
        return found

    def _outputs(self) -> list[tuple[ir.Value, ir.Value]]:
        """The pairs of old and new values at the end, without values that were both made and replaced in this change."""
        last = dict(self.replaced)
        made = {output for node in self.added for output in node.outputs}
        found = []
        for old, new in self.replaced:
            while new in last:
                new = last[new]
            if old not in made and old is not new:
                found.append((old, new))
        return found

    def _fault(self) -> Refusal | None:
        """Check the graph as it is now: does something still need a node that was removed, or has what it must not have?"""
        removed = set(self.removed)
        for node in self.removed:
            if node.graph is None and (needed := needed_elsewhere(node, removed)) is not None:
                self.site = needed.subject.name
                return needed
        return self._taken_apart() or (self._guarded() if self._editor.guards else None)

    def _taken_apart(self) -> Refusal | None:
        """The objection to a change that would remove preserved nodes."""
        if not self.removed:
            return None
        found = taken_apart(self.removed, self.nodes, dict(self._outputs()), self.added)
        if found is None or self._editor.is_users(self.rule) or self.author in self._editor.necessary:
            return None
        old, new = self.replaced[0]
        self.site = old.name or new.name or "?"  # the name may have passed to the new value
        return found

    def _guarded(self) -> Refusal | None:
        """The objection of guards to the operands that nodes have now."""
        rewired = (entry for entry in self._editor._journal[self._start :] if isinstance(entry, Rewired))
        uses = ((node, index, entry.other) for entry in rewired for node, index in entry.uses if node.graph is not None)
        for node, index, before in uses:
            found = next((no for one in self._editor.guards if (no := one.objection(node, index, before))), None)
            if found is not None:
                self.site = found.subject.name
                return found
        return None

    def _annotate(self) -> None:
        """Record on the new nodes which original nodes they stand for."""
        self._hand_on_marks()
        if not self.added or self.origins:
            for copy, original in self.origins.items():
                copy.metadata_props.update(original.metadata_props)
                if keeper(original):
                    keep([copy], keeper(original))
            return
        if self.rule is not None:
            for fresh, who in self._editor.keeps(self.rule, list(self.added)).items():
                keep([fresh], who)
        names: dict[str, None] = {}
        rule = None if self.rule is None else self.author
        olds = self.nodes or [node for old, _ in self.replaced if (node := old.producer()) is not None]
        module = common_module(map(module_of, olds))
        if module:
            for node in self.added:
                node.metadata_props.setdefault(MODULE_KEY, module)
        for node in olds:
            origin = node.metadata_props.get(NODES_KEY)
            if origin is None and rule is None:
                continue  # a pass that is not a rule did not create the old node
            for name in origin.split(";") if origin else [node.name or node.op_type]:
                names.setdefault(name)
        if not names:
            return
        maker = rule or next((made for node in olds if (made := node.metadata_props.get(RULE_KEY))), "")
        for node in self.added:
            node.metadata_props[RULE_KEY] = maker
            node.metadata_props[NODES_KEY] = ";".join(names)

    def _hand_on_marks(self) -> None:
        """Mark what takes the place of marked nodes."""
        olds = {*self.nodes, *(node for old, _ in self.replaced if (node := old.producer()) is not None)}
        for key in (ONLY_KEY, EXCLUDED_KEY):
            mark = next((found for node in olds if (found := node.metadata_props.get(key)) is not None), None)
            if mark is None:
                continue
            instead = (node for _, new in self.replaced if (node := new.producer()) is not None)
            for node in (*self.added, *instead):
                node.metadata_props.setdefault(key, mark)

    def _note_inner(self, inner: Change) -> None:
        """Take over the result of a nested change that has ended."""
        if inner.refusal is None and self.graph is None:
            self.graph = inner.graph


def _is_ours(rule: Any) -> bool:
    """Whether a change is one of the user's own, if nobody says so: no."""
    return False


def _keeps_none(rule: Any, made: Sequence[ir.Node]) -> Mapping[ir.Node, str]:
    """The nodes that are to stay of those that a rule made, if nobody says which: none."""
    return {}


class Changes:
    """The state that the changes of one model share.

    Attributes:
        model: The model.
        facts: What is known about its values, kept up to date.
        inspectors: They are asked about each change.
        checks: They are asked about the changes of the user's own rules and passes alone.
        is_users: Whether a change by a rule, or by none (`None`), is one of the user's own.
        keeps: The nodes that are to stay of those that a rule made, each with who wants that; see `ortfuse.ir.preserved_nodes`.
        necessary: The authors of changes without which there is no result, so that they may take apart what is to stay.
        guards: They are asked about each operand that a change gives to a node that was there.
        recorder: Keeps a record of changes.
        author: The author of changes that name none: the pass being run.
    """

    def __init__(
        self,
        model: ir.Model,
        facts: Listener,
        inspectors: Iterable[Inspector] = (),
        recorder: Recorder | None = None,
        author: str = "edit",
    ) -> None:
        self.model, self.facts, self.recorder, self.author = model, facts, recorder, author
        self.inspectors = list(inspectors)
        self.checks: list[Inspector] = []
        self.is_users: Callable[[Any], bool] = _is_ours
        self.keeps: Callable[[Any, Sequence[ir.Node]], Mapping[ir.Node, str]] = _keeps_none
        self.necessary: Collection[str] = ()
        self.guards: list[Guard] = []
        self._journal: list[Flip] = []
        self._open: Change | None = None
        self._busy = False
        self._scopes: dict[ir.Graph, Scope] = {}
        facts.record(self._journal)

    def change(
        self,
        author: str,
        *,
        rule: Any = None,
        match: Any = None,
        nodes: Sequence[ir.Node] = (),
        instead: Sequence[ir.Node] = (),
        witnesses: Sequence[ir.Node] = (),
    ) -> Change:
        """Group operations: `with editor.change("my.pass") as change: ...`; afterwards `change` is true if they were kept.

        If an exception leaves the block, they are undone. Changes can be nested; an inner one that was applied is undone
        together with the outer one. For the meaning to inspectors see `Edit`: `nodes` compute what is replaced, and
        `instead` computes the replacement as far as it existed before; without `nodes`, both are found from the values.
        """
        return Change(self, author, rule, match, nodes, instead, witnesses)

    def scope_of(self, graph: ir.Graph | None) -> Scope:
        """The scope of a graph of the model; of the main graph if none is given."""
        graph = self.model.graph if graph is None else graph
        if graph not in self._scopes:
            self._scopes = {scope.graph: scope for scope in scopes(self.model)}
        return self._scopes[graph]

    def _undo(self, start: int) -> None:
        journal = self._journal
        while len(journal) > start:
            journal.pop()()


def operation(
    *, builds: bool = False
) -> Callable[[Callable[Concatenate[E, P], R]], Callable[Concatenate[E, P], R | None]]:
    """An editor operation: part of the open change, or else a change of its own, which returns `None` if it was refused.

    Args:
        builds: Whether it only adds things that nothing uses yet: these stay while inspectors look at the change.
    """

    def wrap(operate: Callable[Concatenate[E, P], R]) -> Callable[Concatenate[E, P], R | None]:
        @functools.wraps(operate)
        def run(editor: E, /, *args: P.args, **kwargs: P.kwargs) -> R | None:
            change = editor._open
            if change is None:
                with editor.change(editor.author) as change:
                    result = run(editor, *args, **kwargs)
                return result if change else None
            if editor._busy:
                return operate(editor, *args, **kwargs)
            start, editor._busy = len(editor._journal), True
            try:
                result = operate(editor, *args, **kwargs)
            finally:
                editor._busy = False
            if not builds:
                change._spans.append((start, len(editor._journal)))
            return result

        return run

    return wrap
