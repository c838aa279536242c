"""Let Python write bytecode, whatever the environment says: to be imported before all that takes long to compile.

Rationale: many tests start processes. Each would compile all of ortfuse again, which takes longer than most of them.
"""

from __future__ import annotations

import os
import sys

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
