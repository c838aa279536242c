"""Keep Python's garbage collector off while tests are collected, and the collected tests out of its sight while they run.

Rationale: there are 16,000 tests, none of which is garbage. Each full collection walks all of them and takes half a second.
"""

from __future__ import annotations

import gc

import pytest


def pytest_sessionstart() -> None:
    gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Make the collections at the end of pytest walk nothing, and let a run inside a run go on as it would."""
    gc.freeze()
    gc.enable()
