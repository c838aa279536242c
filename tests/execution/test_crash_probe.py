"""That a model which crashes the runtime is told of; the runtime that dies is one in another process."""

from __future__ import annotations

import signal

import pytest
from small_graphs import model

from ortfuse.errors import VerificationError
from ortfuse.execution import crash_probe
from ortfuse.execution.crash_probe import demand_survival
from ortfuse.verification import verify


@pytest.mark.parametrize(
    ("loader", "told"),
    [
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", f"signal {signal.SIGSEGV.value}, SIGSEGV"),
        ("import os; os._exit(3)", "exit code 3"),
    ],
)
def test_the_death_of_the_other_process_is_an_error(monkeypatch: pytest.MonkeyPatch, loader: str, told: str) -> None:
    monkeypatch.setattr(crash_probe, "_LOAD", loader)
    with pytest.raises(VerificationError, match=told):
        demand_survival(model("y = Relu(x)"))


def test_a_model_that_the_runtime_loads_or_refuses_in_words_is_let_through() -> None:
    demand_survival(model("y = Relu(x)"))
    demand_survival(model("y = com.microsoft.Unheard(x)"))


def test_the_verdict_on_a_model_that_crashes_the_runtime_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    dies = "import os, signal, sys; b'Pow' in open(sys.argv[1], 'rb').read() and os.kill(os.getpid(), signal.SIGSEGV)"
    monkeypatch.setattr(crash_probe, "_LOAD", dies)
    verdict = verify(model("y = Mul(x, x)"), model("y = Pow(x, two)", initializers="<float two = {2.0}>"))
    assert not verdict.ok
    assert verdict.only_optimised
    assert "crashes when it creates a session" in verdict.summary()
    assert "the original is right with the runtime's own optimisations" in verdict.notes[0]


def test_a_model_too_large_to_copy_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crash_probe, "LARGEST", 4)
    monkeypatch.setattr(crash_probe, "_LOAD", "import os; os._exit(3)")
    demand_survival(model("y = Mul(x, w)", initializers="<float[3] w = {1.0, 2.0, 3.0}>"))
