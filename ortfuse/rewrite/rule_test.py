"""Declaration of the test of a rule: instances (shapes, constants, options), and near misses where it must be right."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx_ir as ir

from ortfuse.errors import RuleError

Shapes = Mapping[str, str | int]
"""Maps names of values to shapes, and names of dimensions to sizes."""


@dataclass(frozen=True, kw_only=True)
class Variation:
    """A model similar to an instance of a rule's pattern, on which the rule must either not fire or be right.

    `shapes` (`None`: absent), `attributes`, `scalars`, `constants` and `inputs` override what the rule test declares; attributes
    and scalars have one value each. `options` selects options of the pattern by the names that rule tests print
    (`{"mask": "absent"}`: the name may contain `*`, and the first words of the option suffice). `sizes` binds symbols,
    `fixed` gives inputs as numbers, and the inputs in `unknown` have neither a declared rank nor type. `change` edits the
    finished model.
    """

    shapes: Mapping[str, str | int | None] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    scalars: Mapping[str, float] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    unknown: Sequence[str] = ()
    dtype: str | None = None
    opset: int | None = None
    shape_set: int = 0
    change: Callable[[ir.Model], None] | None = None


@dataclass(frozen=True, kw_only=True)
class RuleTest:
    """The declaration from which tests build instances of a rule without further code.

    Shapes that the pattern itself states are not repeated. `shapes` maps every other captured value to its shape as
    space-separated dimensions (`"b s 64"`; symbols are bound to several sizes, `""` is a scalar), and dimensions of the
    pattern to sizes if they are to be numbers, or to the name of one that they equal. Several shape sets may be given as a
    sequence of mappings; an optional value without a shape is absent. `attributes` lists the values to try for each
    captured attribute, either as one mapping for all shape sets or as one for each. `alternatives` says for each shape set which
    option of named alternatives its instances have, by the name and the number of the option; `scalars` lists those of captured
    numbers. `constants` says how to make a captured constant: `"normal"` (default), `"positive"`, or the numbers
    themselves; `inputs` says how to make other values: an element type, or a function of the builder. `ranges` are those
    that inputs and the `root` were seen to have, for rules that ask for them. Of results that are multiples of a `step`, a
    few may be the next one, where a kernel rounds a little earlier, and what a definition cannot spell may change results by the
    share `beyond` of their size. `dtypes` are the element types of all other values, and
    `typical` gives realistic sizes at which the rule's benefit is measured, and `typical_attributes` the attributes at each
    of them where those of the first shape set do not fit. `opset` pins a single ai.onnx version to try.

    `counterexamples` names variations on which the rule must either not fire or be right, beyond the near misses that every
    rule test tries. Whatever a rule test leaves out is declared with a reason: `uncovered` lists options of the pattern that no
    instance can have (as the failure prints them), `never_empty` symbols that the rule takes to be greater than 0, and
    `assumes` the near misses (by their description, `*` for any) that break an assumption of the rule. `redundant` names
    conditions of the pattern without which the rule would still be right, as mutation tests print them; guards declare that
    themselves (`ortfuse.rewrite.pattern.redundant`). `followed_by` is a unary operator applied to the root, or a function of the
    builder and the root, for rules whose guards look at the consumers of the root.

    `definitions` are for operators that no kernel of the machine computes, such as `com.microsoft.GroupNorm`: functions of the
    node and the opset. Each returns the text of an ONNX function, which instances are run with. It has the inputs and outputs of
    the node in order, and nodes of the standard; `None` where the node has no definition.
    """

    shapes: Shapes | Sequence[Shapes] = field(default_factory=dict)
    attributes: Mapping[str, Sequence[Any]] | Sequence[Mapping[str, Sequence[Any]]] = field(default_factory=dict)
    alternatives: Sequence[Mapping[str, int]] = ()
    scalars: Mapping[str, Sequence[float]] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    step: float = 0.0
    beyond: float = 0.0
    dtypes: Sequence[str] = ("float32",)
    opset: int | None = None
    typical: Sequence[Shapes] = ()
    typical_attributes: Sequence[Mapping[str, Any]] = ()
    counterexamples: Mapping[str, Variation] = field(default_factory=dict)
    uncovered: Mapping[str, str] = field(default_factory=dict)
    never_empty: Mapping[str, str] = field(default_factory=dict)
    assumes: Mapping[str, str] = field(default_factory=dict)
    redundant: Mapping[str, str] = field(default_factory=dict)
    followed_by: str | Callable[[Any, ir.Value], ir.Value] | None = None
    definitions: Mapping[str, Callable[[ir.Node, int], str | None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        named = [condition for condition in self.redundant if condition.startswith("guard ")]
        if named:
            raise RuleError(
                f"a rule test calls a guard redundant ({named[0]!r}), which that says itself: redundant(why)(guard)"
            )

    def shape_sets(self) -> Sequence[Shapes]:
        """The shape sets, as a sequence even if only one was given."""
        return [self.shapes] if isinstance(self.shapes, Mapping) else list(self.shapes)

    def alternative_set(self, number: int) -> Mapping[str, int]:
        """The options of named alternatives that shape set `number` is for."""
        return self.alternatives[number] if self.alternatives else {}

    def attribute_set(self, number: int) -> Mapping[str, Sequence[Any]]:
        """The attribute values to try with shape set `number`."""
        return self.attributes if isinstance(self.attributes, Mapping) else self.attributes[number]
