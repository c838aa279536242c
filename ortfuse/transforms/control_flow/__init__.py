"""Passes about If, Loop and Scan: unrolling, inlining of branches, loop-invariant code motion, dead loop-carried values."""
