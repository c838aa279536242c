"""The command `ortfuse`, also as `python -m ortfuse`; an interruption while it is loaded is told as one that comes later."""

from __future__ import annotations

import importlib
import sys

_INTERRUPTED = 130


def main() -> None:
    """Load the command line, which takes a second, and run it."""
    try:
        importlib.import_module("ortfuse.cli.app").main()
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; nothing was written\n")
        sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
