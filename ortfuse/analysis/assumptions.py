"""Assumptions about a model that a user can declare and that ortfuse cannot prove: `--assume NAME`, `Options(assume=[...])`.

Results are right for all inputs for which the assumption holds. A report states the assumptions that were given.
"""

from __future__ import annotations

from collections.abc import Mapping

FILLS_HIDE = "fills-hide"
LOOPS_RUN = "loops-run"

ASSUMPTIONS: Mapping[str, str] = {
    FILLS_HIDE: "a fill of -104 or less hides attention scores, as some kept score of each query exceeds it by more than 104",
    LOOPS_RUN: "every Loop of the model runs at least once",
}
"""The assumptions by name, each with what it says."""
