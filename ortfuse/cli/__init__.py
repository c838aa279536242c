"""The command line."""

from ortfuse.cli.deferred import defer

defer()
