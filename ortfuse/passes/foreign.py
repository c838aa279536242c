"""Passes of onnxscript and onnx_ir, run as ours.

An `onnx_ir.passes` pass of any kind and an onnxscript `RewriteRule` or `RewriteRuleSet` edit a model behind our back, so the
model is compared with what it was before: what they changed is counted, and the facts are learned anew.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import onnx_ir as ir

from ortfuse.errors import PipelineError
from ortfuse.graph.contents import changes, contents
from ortfuse.passes.context import Context


@dataclass(frozen=True)
class ForeignPass:
    """A pass of another package.

    Attributes:
        name: What it is called in pipelines.
        passed: The pass, rule or set of rules.
    """

    name: str
    passed: Any

    def run(self, context: Context) -> int:
        """Run it; returns in how many places the model has changed."""
        before = contents(context.model)
        result = self._apply(context.model)
        if result is not context.model:
            take_over(context.model, result)
        count = changes(before, contents(context.model))
        if count:
            context.editor.renew_facts()
        return count

    def _apply(self, model: ir.Model) -> ir.Model:
        """The model after the pass, which may be another object."""
        try:
            if isinstance(self.passed, ir.passes.PassBase):
                return self.passed(model).model
            self.passed.apply_to_model(model)
        except Exception as error:
            raise PipelineError(f"pass {self.name} fails: {type(error).__name__}: {error}") from error
        return model


def foreign_pass(given: Any, name: str | None = None) -> ForeignPass | None:
    """A pass of onnx_ir, or a rule or set of rules of onnxscript, as one of ours; `None` if it is none of these.

    Args:
        given: What may be a pass.
        name: What it is called in pipelines; by default its package and class, or the rule's own name.
    """
    is_rule = hasattr(given, "apply_to_model") and type(given).__module__.partition(".")[0] == "onnxscript"
    if not is_rule and not isinstance(given, ir.passes.PassBase):
        return None
    package = type(given).__module__.partition(".")[0].strip("_")
    own = getattr(given, "name", None) if is_rule else None
    return ForeignPass(name or f"{package}.{own or type(given).__name__}", given)


def take_over(model: ir.Model, other: ir.Model) -> None:
    """Let a model be what another is, which is of no use afterwards."""
    model.graph = other.graph
    model.ir_version, model.doc_string = other.ir_version, other.doc_string
    model.producer_name, model.producer_version = other.producer_name, other.producer_version
    model.domain, model.model_version = other.domain, other.model_version
    model.metadata_props.clear()
    model.metadata_props.update(other.metadata_props)
    model.functions.clear()
    model.functions.update(other.functions)
