"""At home with onnxscript and onnx_ir: rules from their functions, our passes as theirs."""

from ortfuse.ecosystem.functions import AnyFunction, read_functions
from ortfuse.ecosystem.rules import pattern_from, rule_from

__all__ = ["AnyFunction", "pattern_from", "read_functions", "rule_from"]
