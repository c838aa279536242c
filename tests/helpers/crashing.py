"""A runtime that dies or hangs on an operator: the program of the worker, and how a test has it run.

The real runtime does so too (`CRASHES`), but what it crashes on is a matter of its version.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

WHEN, OPERATOR = "ORTFUSE_TEST_DIES_WHEN", "ORTFUSE_TEST_DIES_OF"

CRASHES = """
    <ir_version: 8, opset_import: ["" : 20]>
    g (float16[a, b, 4] x, float16[4, 3] w, float16[n, 1] p) => (float16 y, float16 q) <float16[1, 1] one = {1}> {
        t = Transpose <perm = [1, 0, 2]> (x)
        y = MatMul (t, w)
        q = MatMul (p, one)
    }
"""
"""On this ONNX Runtime 1.31 crashes when it optimises (issue 28392)."""


@contextmanager
def runtime_that(when: str, operator: str) -> Iterator[None]:
    """Have the worker die when it loads or runs (`load`, `run`), or `hang` when it runs, a model with this operator."""
    import pytest  # not in the program of the worker, which this file is too

    from ortfuse.runtime import worker

    worker.WORKER.stop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "PROGRAM", Path(__file__))
        patch.setenv(WHEN, when)
        patch.setenv(OPERATOR, operator)
        try:
            yield
        finally:
            worker.WORKER.stop()


def _serve() -> None:
    path = Path(__file__).parents[2] / "ortfuse" / "runtime" / "session_subprocess.py"
    spec = importlib.util.spec_from_file_location("runtime", path)
    assert spec is not None
    assert spec.loader is not None
    runtime = importlib.util.module_from_spec(spec)
    sys.modules["runtime"] = runtime
    spec.loader.exec_module(runtime)

    class Dying(runtime.Loaded):  # type: ignore[misc, name-defined]
        def __init__(self, source: str | bytes, *arguments: Any) -> None:
            content = source if isinstance(source, bytes) else Path(source).read_bytes()
            self._dies = os.environ[OPERATOR].encode() in content
            self._die("load")
            super().__init__(source, *arguments)

        def run(self, *arguments: Any) -> Any:
            self._die("run")
            self._die("hang")
            return super().run(*arguments)

        def _die(self, when: str) -> None:
            if self._dies and os.environ[WHEN] == when:
                if when == "hang":
                    time.sleep(60)
                os.kill(os.getpid(), signal.SIGSEGV)

    runtime.serve(Dying)


if __name__ == "__main__":
    _serve()
