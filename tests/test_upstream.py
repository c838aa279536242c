"""The defects that docs/upstream.md reports are still there: what makes allowance for one that is gone can go too."""

from __future__ import annotations

import re
from pathlib import Path

import onnxruntime
import pytest

TEXT = (Path(__file__).parents[1] / "docs" / "upstream.md").read_text()
REPRODUCED_WITH = re.search(r"onnxruntime (\d+\.\d+\.\d+)", TEXT)
FIRST, *BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: re.sub(r"\W+", " ", block[:40]))
def test_the_example_shows_what_is_reported(block: str, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(FIRST + block, "upstream.md", "exec"), {})
    if REPRODUCED_WITH is not None and onnxruntime.__version__ != REPRODUCED_WITH[1]:
        pytest.skip(f"reproduced with onnxruntime {REPRODUCED_WITH[1]}, and this is {onnxruntime.__version__}")
    printed = capsys.readouterr().out.strip().splitlines()[-1]
    expected = re.search(r"# (.*)\n(?!.*# )", block, re.DOTALL)
    if expected is None:
        assert printed.startswith("assert")
    else:
        told = expected.group(1).strip().splitlines()[-1]
        assert printed.endswith(told.removeprefix("[..., "))
