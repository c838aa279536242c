"""The bare sessions that are served from another process: whether their threads spin, and for how long that is waited for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from ortfuse.runtime.session_subprocess import Loaded, Settings, wait_until_idle

TEXT = '<ir_version: 10, opset_import: ["": 21]> g (float[2,4] x) => (float[2,4] y) { y = Relu(x) }'
STOP = "session.force_spinning_stop"


def spinning(until: float) -> tuple[Callable[[], float], Callable[[float], None], list[float]]:
    """A processor that is used until some time, a way to wait, and the time."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    return lambda: min(now[0], until), sleep, now


def test_a_turn_ends_when_threads_have_stopped_to_spin() -> None:
    used, sleep, now = spinning(until=0.055)
    assert wait_until_idle(used, sleep)
    assert 0.055 < now[0] <= 0.075


def test_what_never_ends_is_not_waited_for() -> None:
    used, sleep, now = spinning(until=99)
    assert not wait_until_idle(used, sleep)
    assert now[0] == pytest.approx(0.5)


def test_threads_spin_where_that_is_asked_for(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(TEXT), tmp_path / "a.onnx")
    for asked in (False, True):
        session = Loaded(str(tmp_path / "a.onnx"), {}, Settings(("CPUExecutionProvider",), spinning=asked))
        session.take({"x": np.ones((2, 4), np.float32)})
        assert len(session.timed(3)) == 3
        options = session._session.get_session_options()
        if asked:
            with pytest.raises(Exception, match=STOP):
                options.get_session_config_entry(STOP)
        else:
            assert options.get_session_config_entry(STOP) == "1"
