"""Lower precision: results of `ortfuse quantize` under several bounds, beside the runtime's own tools."""
