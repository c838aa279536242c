"""Class `Refusal`: why a pattern, guard, target, cost or check rejects a rewrite; shown as missed-optimization remark.

A `Refusal` names its subject, what was found and what is needed. The sentences that say why not and what would help are
generated from these fields, here and nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import onnx_ir as ir

from ortfuse.serialization import Record, derived, entry

Kind = Literal["node", "value", "number", "attribute", "dimension", "operator", "operand", "rule"]
"""Kinds of subjects. A `number` is the product or sum of several constants of the model; an `operand` is one that
is missing."""

Code = Literal[
    "attribute", "attribute_unknown", "axes_added", "coefficient", "condition", "cycle", "dimension", "dtype", "extra_input",
    "extra_part", "graph_output", "inexact", "kept", "kernel_limit", "left_out", "max_opset", "missing_input", "mixes_tokens",
    "needless", "no_kernel", "no_operator", "no_part", "no_replacement", "not_constant", "not_continued", "not_equal",
    "not_same", "opset", "operator", "other_graph", "other_rule", "output", "output_is_input", "forced", "rank", "result_dtype",
    "result_shape", "search_limit", "shape", "signature", "slower", "unasked", "unchecked", "untried", "use", "used_elsewhere",
    "value", "values_unknown",
]  # fmt: skip
"""The kinds of reason. `condition` stands for the check of a variable, `value` for what a guard requires of numbers."""

DECLARE = "declare the types and shapes of the model's inputs, and give sizes that are equal the same name"

_SENTENCES: Mapping[Code, tuple[str, str]] = {
    "attribute": ("{subject} is {found}, not {needed}", "{subject} were {needed}"),
    "attribute_unknown": (
        "{subject} is not known when the model is compiled", "{subject} were constant: export with fixed values for it",
    ),
    "axes_added": (
        "{subject}: the constant {found} may add axes to the result", "the constant {found} had rank 0 (one number)",
    ),
    "coefficient": (
        "the constants in {subject} make up {found}, not {needed}", "the constants in {subject} made up {needed}",
    ),
    "condition": ("{subject}, {found}, is not {needed}", "{subject} were {needed}"),
    "cycle": ("{subject} depends on a result of the nodes that it is an input of", "{subject} did not depend on them"),
    "dimension": ("{subject} is {found}, not provably {needed}", "{subject} were provably {needed}: " + DECLARE),
    "dtype": ("{subject} is {found}, not {needed}", "{subject} were {needed}"),
    "extra_input": ("{subject} has an input {found} beyond {needed}", "{subject} had no input {found}"),
    "extra_part": (
        "{subject} has no place in {needed}", "{subject} were not part of the same sum or product: use it before or after",
    ),
    "graph_output": (
        "{subject} is a graph output, so it must stay", "{subject} were no output of the model: leave it out when exporting",
    ),
    "inexact": ("{subject}: {found} is not exact as {needed}", "{subject} were of a number that is exact as {needed}"),
    "kept": ("{subject} stays, since {found} made it", "{found} had not made it"),
    "kernel_limit": ("{subject} is {found}, and the kernel takes {needed}", "{subject} were {needed}"),
    "left_out": ("{found}", "it were not left out"),
    "max_opset": (
        "{subject} needs opset {needed}, and at most {found} is allowed",
        "the result were allowed opset {needed}: give a --max-opset of {needed} or more, or a --runtime that loads it",
    ),
    "missing_input": ("{subject} is missing", "{subject} were given"),
    "mixes_tokens": (
        "at {subject} a hidden token may reach a visible one: {found}", "the mask kept hidden tokens from {subject}",
    ),
    "unasked": ("{subject}: {needed} is no faster here, and made where it is asked for", "it were asked for: {found}"),
    "needless": ("nothing is gained at {subject}: {found}", "there were something to gain at {subject}"),
    "no_kernel": (
        "{needed} has no kernel for {subject} {found}",
        "the model used a type and an opset that {needed} has a kernel for, such as float32",
    ),
    "no_operator": ("{needed} knows no operator {subject}{found}", "another target that has {subject} were chosen"),
    "no_part": ("no part of {subject}{found} is {needed}", "{subject}, or a part of it, were {needed}"),
    "no_replacement": ("{subject} has no value in the replacement", "{subject} were there"),
    "not_constant": ("{subject} is {found}, not {needed}", "{subject} were {needed}, not computed or given at run time"),
    "not_continued": ("{subject} goes to {found}, and no {needed} comes of it", "{subject} were an operand of {needed}"),
    "not_equal": ("{found}", "the rule were right here: see `ortfuse bisect`"),
    "not_same": ("{subject} is not {needed}, with which it must be one", "{subject} and {needed} were one and the same"),
    "opset": (
        "{subject} needs opset {needed}, the model has {found}", "the model were exported at opset {needed} or later",
    ),
    "operator": ("{subject} comes from {found}, not from {needed}", "{subject} were computed by {needed}"),
    "other_graph": (
        "{subject} belongs to another graph than {needed}", "all of it were in one graph, not partly in a branch or loop",
    ),
    "other_rule": ("{subject} is for {needed}", "{needed} did not take it"),
    "output": ("{subject} is output {found} of its node, not {needed}", "output {needed} of the node were used"),
    "output_is_input": (
        "{subject}, a graph output, cannot be the same value as {found}", "{subject} were no output of the model",
    ),
    "forced": ("{subject} is forced to be {found}", "there were no --force of {subject} to {found}"),
    "rank": ("{subject} has rank {found}, not {needed}", "{subject} had rank {needed}"),
    "result_dtype": ("the result {subject} would be {found} instead of {needed}", "{subject} were {found}"),
    "result_shape": (
        "the result {subject} would have the shape {found} instead of {needed}", "{subject} had the shape {found}: " + DECLARE,
    ),
    "search_limit": (
        "gave up at {subject} after {found} steps of search",
        "the search were shorter: this is a limit of ortfuse, please report it",
    ),
    "shape": ("{subject} has the shape {found}, not provably {needed}", "{subject} had the shape {needed}: " + DECLARE),
    "signature": ("{subject} {found}", "the model used types that {subject} takes"),
    "slower": (
        "{subject} is slower than what it replaces on this runtime (speedup {found})",
        "it were faster here: --force takes it whatever it costs",
    ),
    "unchecked": ("{subject} could not be checked: {found}", "{subject} could be checked"),
    "untried": ("{subject}: {needed} was never run on this target, and is made where it is asked for",
        "it were asked for: {found}",
    ),
    "use": ("{subject} is used for {found}, not for {needed} alone", "{subject} were used for {needed} alone"),
    "used_elsewhere": (
        "{subject} is also used by {found}", "nothing else used {subject}: take it off {found}, or compute it twice",
    ),
    "value": ("{subject} is {found}, not {needed}", "{subject} were {needed}"),
    "values_unknown": (
        "what values {subject} can have is not known, and it must be {needed}",
        "{subject} were made by comparisons, Where and constants within the model, or of bool type",
    ),
}  # fmt: skip
"""For each code the reason, and what would help, as the end of a sentence that begins with "it would match if"."""

ANY = "*"
"""Marks a dimension of a needed shape that may have any size."""

_UNKNOWN: Mapping[str, str] = {"dtype": "element type", "rank": "rank", "shape": "shape", "dimension": "size"}
"""The unknown property, if a refusal with this code has found `None`."""


def words(thing: Any) -> str:
    """A finding or need, in words: shapes in brackets, numbers short, the members of a set as alternatives."""
    match thing:
        case None:
            return "not known"
        case str():
            return thing
        case ir.DataType():
            return thing.name.lower() if thing.name not in _TYPE_NAMES else _TYPE_NAMES[thing.name]
        case ir.Value():
            return f"'{thing.name}'"
        case ir.Node():
            return f"{thing.op_type} '{thing.name}'"
        case float():
            return f"{thing:.7g}"
        case tuple() | list():
            return "[" + ", ".join(map(words, thing)) + "]"
        case set() | frozenset():
            return " or ".join(sorted(map(words, thing)))
    return str(thing)


@dataclass(frozen=True, slots=True)
class Subject(Record):
    """The subject of a refusal, by the names that the author of the model knows.

    Attributes:
        kind: What it is.
        name: Its name; for an attribute e.g. `axis`, for a dimension its number, for a missing operand the value that the
            operand would go into.
        operator: The operator of the node, or of the attribute's node.
        owner: The node that has the attribute, or the value that has the dimension.
        capture: The name under which the rule captures it.
    """

    kind: Kind = field(metadata=entry(optional=True))
    name: str = field(metadata=entry(optional=True))
    operator: str = field(default="", metadata=entry(optional=True))
    owner: str = field(default="", metadata=entry(optional=True))
    capture: str = field(default="", metadata=entry(optional=True))

    @classmethod
    def of(cls, thing: ir.Value | ir.Node | None, capture: str = "") -> Subject:
        """A node or a value; `None` stands for a missing input."""
        if isinstance(thing, ir.Node):
            return cls("node", thing.name or "", operator=thing.op_type, capture=capture)
        if thing is None:
            return cls("operand", "", capture=capture)
        return cls("value", thing.name or "", capture=capture)

    @classmethod
    def attribute(cls, name: str, node: ir.Node, capture: str = "") -> Subject:
        """An attribute of a node, or a parameter that was an attribute in older opsets."""
        return cls("attribute", name, node.op_type, node.name or "", capture)

    @classmethod
    def dimension(cls, value: ir.Value | None, axis: int, capture: str = "") -> Subject:
        """The size of a value along an axis."""
        return cls("dimension", str(axis), owner=(value.name if value is not None else "") or "", capture=capture)

    def __str__(self) -> str:
        match self.kind:
            case "node":
                return f"{self.operator} '{self.name}'"
            case "attribute":
                return f"{self.name} of {self.operator} '{self.owner}'"
            case "dimension":
                return f"dimension {self.name} of '{self.owner}'" + self._captured
            case "number":
                return f"{self.capture} in '{self.name}'"
            case "operand":
                return f"{self.capture or 'an input'}" + (f" of '{self.name}'" if self.name else "")
            case "operator" | "rule":
                return self.name
            case "value":
                return f"'{self.name}'" + self._captured

    @property
    def _captured(self) -> str:
        return f" ({self.capture})" if self.capture not in ("", self.name) else ""


@dataclass(frozen=True, slots=True)
class Refusal(Record):
    """Why something is not done.

    Attributes:
        code: The kind of reason.
        subject: What stands in the way.
        found: What was found there: a shape, a type, a number, words, or `None` if unknown.
        needed: What would have to be there instead.
        own_remedy: What would help, where the text generated from the fields is not good enough.
    """

    code: Code
    subject: Subject
    found: Any = field(default="", metadata=entry(convert=words))
    needed: Any = field(default="", metadata=entry(convert=words))
    own_remedy: str = field(default="", metadata=entry(omit=True))

    @property
    @derived()
    def reason(self) -> str:
        """The obstacle, in words."""
        if self._is_unknown:
            return f"the {_UNKNOWN[self.code]} of {self.subject} is not known"
        return self._fill(_SENTENCES[self.code][0])

    @property
    @derived()
    def remedy(self) -> str:
        """The remedy, as the end of a sentence that begins with "it would match if"."""
        if self.own_remedy:
            return self.own_remedy
        if self._is_unknown:
            return f"the {_UNKNOWN[self.code]} of {self.subject} were known: {DECLARE}"
        return self._unequal_sizes() or self._fill(_SENTENCES[self.code][1])

    def __str__(self) -> str:
        return self.reason

    @property
    def _is_unknown(self) -> bool:
        return self.found is None and self.code in _UNKNOWN

    def _fill(self, sentence: str) -> str:
        return sentence.format(subject=self.subject, found=words(self.found), needed=words(self.needed)).strip()

    def _unequal_sizes(self) -> str:
        """The sizes that differ between two shapes of the same rank, in words."""
        found, needed = self.found, self.needed
        if self.code != "shape" or not (isinstance(found, tuple) and isinstance(needed, tuple)):
            return ""
        if len(found) != len(needed):
            return ""
        pairs = [(axis, a, b) for axis, (a, b) in enumerate(zip(found, needed, strict=True)) if b not in (a, ANY)]
        if not pairs:
            return ""
        sizes = ", ".join(f"dimension {axis} of {self.subject} were {words(b)}, not {words(a)}" for axis, a, b in pairs)
        return sizes if all(isinstance(a, int) and isinstance(b, int) for _, a, b in pairs) else f"{sizes}: {DECLARE}"


def refuse(
    code: Code, subject: Subject | ir.Value | ir.Node | None, *, found: Any = "", needed: Any = "", remedy: str = ""
) -> Refusal:
    """A refusal; values and nodes are recorded by their current names, for they may be renamed later."""
    about = subject if isinstance(subject, Subject) else Subject.of(subject)
    return Refusal(code, about, _noted(found), _noted(needed), remedy)


def _noted(thing: Any) -> Any:
    return words(thing) if isinstance(thing, ir.Value | ir.Node) else thing


_TYPE_NAMES = {"FLOAT": "float32", "DOUBLE": "float64"}
