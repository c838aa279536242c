"""Passes on If, Loop and Scan: unrolling, branch inlining, loop-invariant code motion, dead loop-carried values."""
