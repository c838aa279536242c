"""What a user can declare about a model that ortfuse cannot prove: `--assume NAME`, `Options(assume=[...])`.

Results are right for all inputs for which the assumption holds. A report states the assumptions that were given.
"""

from __future__ import annotations

from collections.abc import Mapping

FILLS_HIDE = "fills-hide"
LOOPS_RUN = "loops-run"

ASSUMPTIONS: Mapping[str, str] = {
    FILLS_HIDE: "a number of -104 or less that replaces scores of attention hides them: a query that keeps any key has a kept "
    "score more than 104 above that number",
    LOOPS_RUN: "every Loop of the model runs at least once",
}
"""The assumptions by name, each with what it says."""
