"""Plugin of pytest: the flag `--ortfuse-refresh`, and a summary of refreshed expectations at the end of a run.

pytest loads it in every run of an environment that ortfuse is installed in, so that it imports nothing but what it needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ortfuse.testing.golden_tests import CHANGED, REFRESH


def pytest_addoption(parser: Any) -> None:
    """Declare the flag."""
    parser.getgroup("ortfuse").addoption(
        REFRESH,
        action="store_true",
        default=False,
        help="Store the results of the models of `ortfuse.testing.golden` as their expectations, and show the changes.",
    )


def pytest_terminal_summary(terminalreporter: Any, config: Any) -> None:
    """Show what a refresh changed."""
    if not config.getoption(REFRESH, False):
        return
    terminalreporter.section(CHANGED)
    for line in list(_changes(terminalreporter.stats)) or ["nothing"]:
        terminalreporter.write_line(line)


def _changes(stats: dict[str, list[Any]]) -> Iterator[str]:
    for reports in stats.values():
        for report in reports:
            if getattr(report, "when", "") == "call":
                yield from (str(value) for name, value in report.user_properties if name == CHANGED)
