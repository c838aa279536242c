"""Every command that the README and the documents show can be given as it stands there.

`python -m tests.test_documented_commands` executes them all on small models, in a folder for temporary files; that takes minutes.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import typer

from ortfuse.cli.app import app

ROOT = Path(__file__).parents[1]
MODELS = ROOT / "golden" / "models"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHOWN = re.compile(r"^ +(?:- run: )?ortfuse ([a-z].*)$|`ortfuse ([a-z]+ [^`]+)`", re.MULTILINE)

STANDS_FOR = {
    "MODEL...": "bert.onnx", "MODEL": "bert.onnx", "A": "bert.onnx", "B": "bert.opt.onnx", "RESULT": "result.onnx",
    "FOLDER": "models", "RESULTS": "results", "DIR": "samples", "FILE.html": "page.html", "FILE": "my_rules.py",
    "FILE...": "my_rules.py", "NUMBER": "0.01", "RESULT.options.toml": "options.toml",
}  # fmt: skip
"""What the words stand for that a reader fills in."""

FILES = {"--config": "options.toml", "--inputs": "samples"}
"""What FILE stands for behind a flag."""

SHOWN_MODELS = ("bert", "model", "bert.opt", "model.opt", "llama", "result")
TANH = '<ir_version: 8, opset_import: ["": 17]> g (float[n,m] x) => (float[n,m] y) <float two = {2}, float one = {1}> {'
PAIR = {
    "y = Tanh(x) }": ("a", "old"),
    "d = Mul(x, two) s = Sigmoid(d) t = Mul(s, two) y = Sub(t, one) }": ("b", "new"),
}
RULES = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "first-rule.md").read_text(), re.DOTALL)[0]


def shown() -> list[str]:
    """The commands, without what is said of them behind two spaces or a hash."""
    found: dict[str, None] = {}
    for page in PAGES:
        for match in SHOWN.finditer(page.read_text()):
            text = re.split(r"  +|\s#", match[1] or match[2])[0].strip()
            if "..." not in text.replace("MODEL...", "").replace("FILE...", ""):
                found[text] = None
    return list(found)


def words(text: str) -> list[str]:
    """The arguments of a command, with files for what a reader fills in."""
    given = shlex.split(text)
    if given[1:] in (["--for", "quantization"], ["--session"]):
        given.append("MODEL")  # flags of which a sentence speaks
    return [
        FILES.get(before, STANDS_FOR["FILE"]) if word == "FILE" else STANDS_FOR.get(word, word)
        for before, word in zip(["", *given], given, strict=False)
    ]


def prepare(folder: Path) -> None:
    """Put what the commands name into a folder."""
    for name in SHOWN_MODELS:
        shutil.copy(MODELS / f"{'llama' if name == 'llama' else 'bert'}.sdpa.ts.onnx", folder / f"{name}.onnx")
    for body, names in PAIR.items():
        for name in names:
            onnx.save(onnx.parser.parse_model(TANH + body), folder / f"{name}.onnx")
    (folder / "models").mkdir()
    shutil.copy(MODELS / "resnet.ts.onnx", folder / "models")
    (folder / "my_rules.py").write_text(RULES)
    (folder / "options.toml").write_text("")
    (folder / "models.toml").write_text('[models."models/*.onnx"]\n')
    (folder / "samples").mkdir()
    rng = np.random.default_rng(0)
    for number in range(24):
        ids = rng.integers(0, 99, (1, 16))
        np.savez(
            folder / "samples" / f"{number}.npz",
            input_ids=ids,
            attention_mask=np.ones_like(ids),
            token_type_ids=ids * 0,
        )


def test_documents_show_commands_of_each_kind() -> None:
    commands = {text.split()[0] for text in shown()}
    assert {command.name or command.callback.__name__ for command in app.registered_commands} == commands


@pytest.mark.parametrize("text", shown())
def test_a_command_of_the_documents_can_be_given(
    text: str, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path_factory.getbasetemp())
    group: Any = typer.main.get_command(app)
    given = words(text)
    command = group.commands[given[0]]
    command.make_context(given[0], given[1:])


def main() -> None:
    """Execute every command, and print those that end with an error."""
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        for text in shown():
            shutil.copy(MODELS / "bert.sdpa.ts.onnx", Path(folder) / "result.onnx")  # whatever the last command wrote
            given = [re.sub(r"^120s?$", "10", word) for word in words(text)]
            done = subprocess.run(
                [sys.executable, "-m", "ortfuse", *given], cwd=folder, capture_output=True, text=True, check=False
            )
            print(f"{done.returncode}  ortfuse {text}", flush=True)
            if done.returncode:
                print((done.stdout + done.stderr)[-1500:], flush=True)


if __name__ == "__main__":
    main()
