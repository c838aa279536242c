"""The functions of `ortfuse.*`: optimize, verify, quantize, profile, and what they share.

The command line calls these functions and nothing else.
"""
