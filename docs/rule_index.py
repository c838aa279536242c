"""Writes the index of the built-in rules (`ortfuse.pipeline.rule_index`), into `patterns/`, which is shipped.

python docs/rule_index.py            # write it
python docs/rule_index.py --check    # only say whether it is what the rules say; then the exit code is 1 if it is not
"""

from __future__ import annotations

import sys
from pathlib import Path

from ortfuse.pipeline.build_rule_index import refresh

FOLDER = Path(__file__).parents[1] / "patterns"


def main(arguments: list[str]) -> int:
    """Write or check the index; returns the exit code."""
    check = "--check" in arguments
    if not refresh(FOLDER, write=not check):
        return 0
    print("patterns/rule_index.json is not what the rules say: run python docs/rule_index.py" if check else "written")
    return 1 if check else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
