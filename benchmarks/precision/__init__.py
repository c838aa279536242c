"""Lower precision: what `ortfuse quantize` makes of models under several bounds, beside the runtime's own tools."""
