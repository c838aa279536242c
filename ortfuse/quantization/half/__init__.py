"""Conversion to float16 and bfloat16 with the smallest float32 islands."""

from ortfuse.quantization.half.convert_to_half import Conversion, convert

__all__ = ["Conversion", "convert"]
