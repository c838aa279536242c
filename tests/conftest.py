"""What holds for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import kept_bytecode  # noqa: F401 - before ortfuse is imported
import pytest
from hypothesis import HealthCheck, settings

from ortfuse.runtime import worker
from ortfuse.runtime.bench import stopping_rule
from ortfuse.runtime.session_settings import settings_cache
from ortfuse.targets import calibrated_speedups, default_spec, rule_speedups, shipped_costs, shipped_tables

pytest_plugins = ("collected_garbage", "rule_cache", "tiers")

# The same examples at every run, however long a busy machine takes for them; --hypothesis-profile=default tries others.
settings.register_profile(
    "same", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("same")


@pytest.fixture(autouse=True, scope="session")
def _costs_of_the_processor_of_the_table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What tests expect of costs are the choices by the first of the shipped tables, on whatever machine they run.

    What `ortfuse calibrate` measured on that machine does not count.
    """
    first = shipped_tables(default_spec())[0]
    kind, formats = first.processor, first.formats
    file: Path = tmp_path_factory.mktemp("cache") / "calibration.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rule_speedups, "processor_kind", lambda: kind)
        patch.setattr(rule_speedups, "number_formats", lambda: formats)
        patch.setattr(calibrated_speedups, "calibration_file", lambda: file)
        patch.setattr(settings_cache, "settings_file", lambda: file.with_name("sessions.json"))
        shipped_costs.cache_clear()
        calibrated_speedups.costs_here.cache_clear()
        yield


@pytest.fixture(autouse=True, scope="session")
def _limits_of_time() -> Iterator[None]:
    """Tests measure as many rounds as they ask for; a model that never ends fails its test in a minute."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stopping_rule, "SECONDS", 0.0)
        patch.setattr(worker, "LIMIT", 60.0)
        yield
