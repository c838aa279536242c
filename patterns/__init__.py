"""The catalogue: one file per family, each opening with its formulas. The engine discovers the files and never imports them
by name.

A file defines `RULES`, and may name the pass that runs them with `PASS` (by default `fuse.<file name>`). Files whose name
begins with an underscore hold sub-patterns and guards.
"""
