"""What holds for all tests."""

from __future__ import annotations

import pytest

from ortfuse.targets import CPU, costs, shipped_costs


@pytest.fixture(autouse=True, scope="session")
def _costs_of_the_processor_of_the_table() -> None:
    """What tests expect of costs are the choices on the kind of processor of the shipped table, on whatever machine they run."""
    kind = shipped_costs(CPU).processor
    costs.processor_kind = lambda: kind
    shipped_costs.cache_clear()
