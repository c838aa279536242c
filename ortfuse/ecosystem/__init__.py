"""At home with onnxscript and onnx_ir: rules from their functions, our passes as theirs.

Their passes and rule sets stand in our pipelines as they are (see `ortfuse.PassManager` and `ortfuse.register_pass`).
"""

from ortfuse.ecosystem.functions import AnyFunction, read_functions
from ortfuse.ecosystem.ir_pass import OrtfusePass, as_ir_pass
from ortfuse.ecosystem.rules import pattern_from, rule_from
from ortfuse.targets import register_operators

__all__ = [
    "AnyFunction",
    "OrtfusePass",
    "as_ir_pass",
    "pattern_from",
    "read_functions",
    "register_operators",
    "rule_from",
]
