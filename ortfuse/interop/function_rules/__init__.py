"""Rules given as functions: of onnxscript, of ONNX, or plain Python functions of `op` and values."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir

from ortfuse.errors import RuleError
from ortfuse.interop.function_rules.convert_function_to_nodes import AnyFunction, Body, body_of
from ortfuse.interop.function_rules.function_to_pattern import lift_pattern, lift_replacement
from ortfuse.interop.function_rules.function_to_pattern_base import Captures
from ortfuse.interop.function_rules.split_output_sizes import same_parts
from ortfuse.naming.former_arguments import former_arguments
from ortfuse.rewrite import Exactness, Rule, RuleTest
from ortfuse.rewrite.pattern import Guard, Pattern
from ortfuse.rewrite.pattern.siblings import Siblings

Callees = Mapping[ir.OperatorIdentifier, ir.Function]


def pattern_from(function: AnyFunction, *, callees: Callees | None = None) -> Pattern:
    """The pattern of a function, for `ortfuse.find` or as a part of a rule.

    A function with several outputs gives siblings; none of them may be computed on the way to another.

    Args:
        function: A function of onnxscript, an `onnx.FunctionProto`, an `onnx_ir.Function` or a plain Python function.
        callees: Functions that it may call, which are inlined; those of onnxscript are known.

    Raises:
        RuleError: The function cannot be lifted; the message names it and the node.
    """
    lifted = lift_pattern(body_of(function, callees))
    if len(lifted.outputs) != len(lifted.roots):
        raise RuleError(
            f"a pattern has roots alone, and of the {len(lifted.outputs)} outputs of the function"
            f" {len(lifted.roots)} are roots: use rule_from"
        )
    return lifted.whole(lifted.outputs)


@former_arguments(proof="test")
def rule_from(
    pattern: AnyFunction | Body,
    replacement: AnyFunction | Body | Sequence[AnyFunction | Body],
    *,
    name: str,
    exactness: Exactness,
    source: str,
    test: RuleTest | None = None,
    guards: Sequence[Guard] = (),
    callees: Callees | None = None,
    **fields: Any,
) -> Rule:
    """A rule from two functions: wherever the computation of the first is found, it is replaced by that of the second.

    Inputs and attributes of the two correspond by name. Attributes are captured, and so are numbers that a function takes as
    attributes; numbers in a body must match exactly those numbers. A function may have several outputs, and then the replacement
    has as many. Those that are not computed on the way to another share an input (`ortfuse.rewrite.pattern.siblings`).

    Args:
        pattern: What is looked for: a function of onnxscript, an `onnx.FunctionProto`, an `onnx_ir.Function` or a plain
            Python function of `op` and values.
        replacement: What is to be computed instead; several are tried in order.
        name: The name of the rule, see `Rule`.
        exactness: How far the results of the two may differ, see `Rule`.
        source: The source of the formula, see `Rule`.
        test: How to build instances. What the pattern already states (shapes by annotations, defaults, constants) is not
            repeated.
        guards: Conditions beyond the pattern.
        callees: Functions that the two may call, which are inlined; those of onnxscript are known.
        **fields: Further fields of `Rule`.

    Raises:
        RuleError: A function cannot be lifted; the message names it and the node.
    """
    lifted = lift_pattern(body_of(pattern, callees))
    given: list[Any] = list(replacement) if isinstance(replacement, (list, tuple)) else [replacement]
    whole = lifted.whole(lifted.outputs)
    if isinstance(whole, Siblings) and (problem := whole.problem()) is not None:
        raise RuleError(f"rule {name}: {problem}")
    made = []
    for one in given:
        body = body_of(one, callees)
        patterns = lift_replacement(body, lifted.captures)
        if len(patterns) != len(lifted.outputs):
            raise RuleError(
                f"rule {name}: function {body.name} has {len(patterns)} outputs, and the pattern {len(lifted.outputs)}"
            )
        made.append(patterns)
    intermediates = {
        label: [patterns[number] for patterns in made]
        for number, label in enumerate(lifted.labels)
        if number not in lifted.roots
    }
    return Rule(
        name=name,
        pattern=whole,
        replace=[lifted.whole(patterns) for patterns in made],
        exactness=exactness,
        source=source,
        test=_completed(test or RuleTest(), lifted.captures),
        guards=(*guards, *same_parts(lifted.captures.parts)),
        intermediates=intermediates,
        **fields,
    )


def _completed(test: RuleTest, captured: Captures) -> RuleTest:
    """The rule test, completed with what the function states: its constants, and the defaults of captured attributes."""
    sets = test.attributes if isinstance(test.attributes, Mapping) else list(test.attributes)
    defaults = {key: [value] for key, value in captured.attributes.items() if value is not None}
    for name, parts in captured.parts.items():
        defaults |= parts.values(name)
    numbers = {key: [float(value)] for key, value in captured.scalars.items() if value is not None}
    shapes = {key: " ".join(map(str, array.shape)) for key, array in captured.constants.items()}
    return dataclasses.replace(
        test,
        shapes=[{**shapes, **given} for given in test.shape_sets()],
        attributes={**defaults, **sets} if isinstance(sets, Mapping) else [{**defaults, **given} for given in sets],
        scalars={**numbers, **test.scalars},
        constants={**captured.constants, **test.constants},
    )
