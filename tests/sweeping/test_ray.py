"""A sweep on a cluster of two workers, one of which is killed on the way. Only where Ray is installed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ortfuse.sweeping import Row
from ortfuse.sweeping.run_sweep import _Job, _on_ray

ray = pytest.importorskip("ray")


def test_a_worker_that_dies_costs_no_model(tmp_path: Path) -> None:
    def dies_once(asked: Mapping[str, Any], limit: float) -> Row:
        """Kills its worker at the first try of one model."""
        mark = Path(asked["output"])
        if "victim" in asked["model"] and not mark.exists():
            mark.write_text("")
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.05)
        return Row(asked["model"], "ok", reason="again" if mark.exists() else "")

    jobs = [_Job(str(n), f"{'victim' if n == 1 else 'model'}{n}", str(tmp_path / str(n)), {}, False) for n in range(4)]
    cluster = ray.init(num_cpus=2, include_dashboard=False)
    try:
        rows = {job.model: row for job, row in _on_ray(jobs, cluster.address_info["address"], 60, dies_once)}
    finally:
        ray.shutdown()
    assert [rows[job.model].status for job in jobs] == ["ok"] * 4
    assert rows["victim1"].reason == "again"
