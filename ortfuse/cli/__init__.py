"""The command line."""

from ortfuse.cli.lazy_imports import defer

defer()
