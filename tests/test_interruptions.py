"""Interruptions of the command, wherever they come: while it is loaded, in a compiled library, or in the background."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from ortfuse.__main__ import main


def interrupt(name: str = "") -> None:
    signal.raise_signal(signal.SIGINT)


def interrupt_while_a_library_is_loaded(name: str) -> None:
    try:
        interrupt()
    except KeyboardInterrupt:
        raise ImportError("initialization failed") from None


def terminate(name: str) -> None:
    signal.raise_signal(signal.SIGTERM)


def terminate_in_a_command(name: str) -> None:
    try:
        terminate(name)
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; no file is left half written\n")
        raise SystemExit(130) from None


@pytest.fixture
def usual_signals() -> Iterator[None]:
    """Interruptions as a program in the foreground has them; tests that run in the background ignore them."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.parametrize("come", [terminate, terminate_in_a_command])
def test_the_signal_to_terminate_is_an_interruption_with_a_code_of_its_own(
    come: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.import_module", come)
    with pytest.raises(SystemExit, match="143"):
        main()
    assert capsys.readouterr().err == "interrupted; no file is left half written\n"
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


def terminate_while_an_object_is_disposed_of(name: str) -> None:
    class Ended:
        def __del__(self) -> None:
            signal.raise_signal(signal.SIGTERM)

    Ended()
    time.sleep(60)


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.parametrize("come", [terminate, terminate_while_an_object_is_disposed_of])
def test_a_job_in_the_background_that_ignores_interruptions_is_terminated_as_tidily(
    come: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    monkeypatch.setattr("importlib.import_module", come)
    with pytest.raises(SystemExit, match="143"):
        main()
    assert capsys.readouterr().err == "interrupted; no file is left half written\n"
    assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL


class Disposed:
    def __del__(self) -> None:
        interrupt()


def interrupt_while_an_object_is_disposed_of(name: str) -> None:
    Disposed()
    time.sleep(60)


@pytest.mark.usefixtures("usual_signals")
@pytest.mark.parametrize(
    "come", [interrupt, interrupt_while_a_library_is_loaded, interrupt_while_an_object_is_disposed_of]
)
def test_an_interruption_is_one_line_wherever_it_comes(
    come: Callable[[str], None], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    handler = signal.getsignal(signal.SIGINT)
    monkeypatch.setattr("importlib.import_module", come)
    with pytest.raises(SystemExit, match="130"):
        main()
    assert capsys.readouterr().err == "interrupted; no file is left half written\n"
    assert signal.getsignal(signal.SIGINT) is handler


def test_what_goes_wrong_without_an_interruption_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(name: str) -> None:
        raise ImportError("initialization failed")

    monkeypatch.setattr("importlib.import_module", broken)
    with pytest.raises(SystemExit) as stopped:
        main()
    assert stopped.value.code == 2
    assert capsys.readouterr().err.startswith("error: ImportError: initialization failed; --debug shows")
