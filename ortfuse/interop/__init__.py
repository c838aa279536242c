"""Integration with onnxscript and onnx_ir: rules from their functions and from models, ortfuse passes as onnx_ir passes.

Passes of onnx_ir and rule sets of onnxscript can be used in pipelines of ortfuse directly (see `ortfuse.PassManager` and
`ortfuse.register_pass`).
"""

from ortfuse.interop.function_rules import pattern_from, rule_from
from ortfuse.interop.function_rules.convert_function_to_nodes import AnyFunction, read_functions
from ortfuse.interop.onnx_ir_pass import OrtfusePass, as_ir_pass
from ortfuse.interop.register_operator import describe_operator
from ortfuse.interop.substitution import RuleTestError, Substitution, UnprovedError, rule_from_models, substitute
from ortfuse.targets import register_operators

__all__ = [
    "AnyFunction",
    "OrtfusePass",
    "RuleTestError",
    "Substitution",
    "UnprovedError",
    "as_ir_pass",
    "describe_operator",
    "pattern_from",
    "read_functions",
    "register_operators",
    "rule_from",
    "rule_from_models",
    "substitute",
]
