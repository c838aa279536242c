"""The functions of `ortfuse.*`: optimize, verify, quantize, profile, and what they share."""
