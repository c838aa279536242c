from __future__ import annotations

import dataclasses
import importlib
import os
import shutil
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from rule_files import HEAD, rules

import ortfuse
from ortfuse.analysis.facts import Facts
from ortfuse.errors import RuleError
from ortfuse.ir.editor import Editor
from ortfuse.pipeline import PassManager, load_catalogue, rules_in
from ortfuse.pipeline import discover_rule_files as catalogue_module
from ortfuse.rewrite import Rewriter, Rule
from ortfuse.targets import Target
from ortfuse.transforms import RulePass

ROOT = Path(__file__).parents[2]


def test_the_built_in_catalogue_is_found() -> None:
    found = load_catalogue()
    assert "canonicalize" in found.passes()
    assert any(name.startswith("fuse.") for name in found.passes())
    assert all(file.source == "built-in" for file in found.files)
    assert not any(Path(file.origin).name.startswith("_") for file in found.files)


def test_a_file_or_folder_of_the_catalogue_can_be_named_like_one_of_the_user(tmp_path: Path) -> None:
    files = [file for file in load_catalogue().files if file.pass_name == "fuse.activation"]
    first = Path(files[0].origin)
    assert rules_in([first]) == files[0].rules
    assert rules_in([first.parent]) == tuple(rule for file in files for rule in file.rules)
    own = tmp_path / "mine.py"
    own.write_text(rules("mine.a"))
    assert [rule.name for rule in rules_in([own, first])] == [*(rule.name for rule in files[0].rules), "mine.a"]
    with pytest.raises(RuleError, match="no such rule file"):
        rules_in([first.with_name("nothing.py")])


def test_the_built_in_catalogue_is_found_in_a_checkout_that_is_not_installed(tmp_path: Path) -> None:
    for name in ("ortfuse", "patterns"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    code = "from ortfuse.pipeline import load_catalogue; print({file.origin for file in load_catalogue().files})"
    # -S and the path by hand: neither an installed ortfuse nor its import hooks are in the way.
    paths = [str(tmp_path), *(path for path in sys.path if path.endswith("site-packages"))]
    start = f"import sys; sys.path[:0] = {paths!r}; {code}"
    done = subprocess.run([sys.executable, "-S", "-c", start], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert str(tmp_path / "patterns") in done.stdout


def test_a_file_of_the_user_becomes_a_pass(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(rules("mine.one", "mine.two"))
    found = load_catalogue([tmp_path / "mine.py"])
    assert [rule.name for rule in found.passes()["fuse.mine"]] == ["mine.one", "mine.two"]
    assert found.passes_from("package", "user") == ("fuse.mine",)


def test_a_folder_has_helpers_relative_imports_and_subfolders(tmp_path: Path) -> None:
    (tmp_path / "_shared.py").write_text(HEAD)
    (tmp_path / "first.py").write_text(
        "from ._shared import *\nfrom ._shared import op, rule, x\nRULES = [rule('a.one', op.Neg(op.Neg(x)), x)]"
    )
    (tmp_path / "second.py").write_text(
        "from .first import rule, op, x\nPASS = 'mine.pass'\nRULES = [rule('a.two', op.Neg(op.Neg(x)), x)]"
    )
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "__init__.py").write_text("")
    (tmp_path / "inner" / "third.py").write_text(
        "from ..first import rule, op, x\nRULES = [rule('a.three', op.Neg(op.Neg(x)), x)]"
    )
    (tmp_path / "notes.txt").write_text("not a rule file")
    assert load_catalogue([tmp_path]).passes_from("user") == ("fuse.first", "fuse.inner", "mine.pass")
    assert load_catalogue([tmp_path / "second.py"]).passes_from("user") == ("mine.pass",)


def test_files_are_tried_in_the_order_that_their_folder_says_and_others_after_them_by_name(tmp_path: Path) -> None:
    for name in ("a", "b", "c", "d"):
        (tmp_path / f"{name}.py").write_text(rules(f"{name}.one"))
    (tmp_path / "__init__.py").write_text('ORDER = ("d", "b")\n')
    assert [*load_catalogue([tmp_path]).passes_from("user")] == ["fuse.d", "fuse.b", "fuse.a", "fuse.c"]


def test_a_file_in_a_folder_may_come_before_or_after_the_others_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner" / "__init__.py").write_text('ORDER = ("z", "y")\n')
    for name in ("b", "inner/x", "inner/y", "inner/z", "inner/first", "inner/last"):
        (tmp_path / f"{name}.py").write_text(f"PASS = 'fuse.{Path(name).name}'\n" + rules(f"a.{Path(name).name}"))
    (tmp_path / "__init__.py").write_text('ORDER = ("inner/first", "b", "inner", "inner/last")\n')
    found = load_catalogue([tmp_path]).passes_from("user")
    assert [*found] == ["fuse.first", "fuse.b", "fuse.z", "fuse.y", "fuse.x", "fuse.last"]


@pytest.mark.parametrize("folder", [found.parent for found in (ROOT / "patterns").rglob("__init__.py")], ids=str)
def test_an_order_names_files_that_there_are_each_once(folder: Path) -> None:
    named = importlib.import_module(".".join(["ortfuse", *folder.relative_to(ROOT).parts])).ORDER
    there = {path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*")}
    assert set(named) <= there
    assert len(set(named)) == len(named)


def test_a_file_is_read_anew_each_time(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(rules("mine.one"))
    load_catalogue([path])
    path.write_text(rules("mine.one", "mine.another"))
    assert len(load_catalogue([path]).passes()["fuse.mine"]) == 2


def test_rules_can_be_added_to_the_canonical_form(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(rules("mine.one") + "PASS = 'canonicalize'\n")
    found = load_catalogue([tmp_path / "mine.py"])
    assert found.passes()["canonicalize"][-1].name == "mine.one"
    assert found.passes_from("user") == ()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("x = (", r"SyntaxError: .*\(line 1\)"),
        ("import nothing_of_the_kind", r"ModuleNotFoundError: .*nothing_of_the_kind.*\(line 1\)"),
        ("x = 1", "declares no RULES"),
        ("RULES = 3", "declares no RULES"),
        ("RULES = [3]", r"RULES\[0\] is a int, not a Rule"),
        (rules("mine.one", "mine.one"), "'mine.one' is taken by"),
        (rules("Mine"), r"rule name 'Mine' must be .*\(line 8\)"),
        (rules("mine.one") + "PASS = 'no spaces please'", "PASS must be the name of a pass"),
        (HEAD + "\n\nRULES = [rule('mine.one', x, x)]", r"matches any value.*\(line 10\)"),
    ],
)
def test_mistakes_name_the_file(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "mine.py"
    path.write_text(content)
    with pytest.raises(RuleError, match=message) as error:
        load_catalogue([path])
    assert str(path) in str(error.value)


def test_a_mistake_in_a_helper_names_the_helper(tmp_path: Path) -> None:
    (tmp_path / "_helper.py").write_text("\nx = (")
    (tmp_path / "mine.py").write_text("from ._helper import x\nRULES = []")
    with pytest.raises(RuleError, match=r"mine.py: SyntaxError: .*line 2 of .*_helper.py"):
        load_catalogue([tmp_path])


def test_a_name_that_a_built_in_rule_has_is_refused(tmp_path: Path) -> None:
    taken = next(iter(load_catalogue().rules())).name
    (tmp_path / "mine.py").write_text(rules(taken))
    with pytest.raises(RuleError, match=f"'{taken}' is taken by"):
        load_catalogue([tmp_path])


@pytest.mark.parametrize(
    ("name", "message"),
    [("nothing.py", "no such rule file"), ("empty", "has no rule files"), ("rules.txt", "is a Python file")],
)
def test_what_is_no_rule_file_is_refused(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "rules.txt").write_text("")
    with pytest.raises(RuleError, match=message):
        load_catalogue([tmp_path / name])


def test_an_installed_package_offers_rules_by_its_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "acme_rules"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "acme.py").write_text(rules("acme.one"))
    metadata = tmp_path / "acme_rules-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-rules\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[ortfuse.patterns]\nacme = acme_rules\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = load_catalogue()
    assert found.passes_from("package") == ("fuse.acme",)
    (metadata / "entry_points.txt").write_text("[ortfuse.patterns]\nacme = acme_rules.nothing\n")
    os.utime(tmp_path, (0, 0))  # installing puts files there
    importlib.invalidate_caches()
    with pytest.raises(RuleError, match="package acme-rules"):
        load_catalogue()


UNPROVED = (
    (rules("mine.one").replace(',\n                test=RuleTest(shapes={"x": "2"})', ""), "test"),
    (rules("mine.one").replace('RuleTest(shapes={"x": "2"})', "None"), "rule mine.one has no rule test"),
    (rules("mine.one").replace('{"x": "2"}', "()"), "rule mine.one has an empty rule test"),
    (rules("mine.one").replace('{"x": "2"}', '{"y": "2"}'), "the rule test of rule mine.one gives no shape for x"),
    (
        rules("mine.one").replace("def rule", "class Own(Rule):\n    def __post_init__(self): pass\ndef rule")
        .replace("Rule(name", "Own(name").replace('RuleTest(shapes={"x": "2"})', "None"),
        "rule mine.one has no rule test",
    ),
)  # fmt: skip


@pytest.mark.parametrize(
    ("content", "message"), UNPROVED, ids=("left out", "None", "empty", "other values", "subclass")
)
def test_rules_without_a_proof_come_in_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str, message: str
) -> None:
    path = tmp_path / "mine.py"
    path.write_text(content)
    model = onnx.parser.parse_model(
        '<ir_version: 9, opset_import: ["": 18]> g (float[2] x) => (float[2] y) { y = Neg(x) }'
    )
    with pytest.raises(RuleError, match=message):
        ortfuse.optimize(model, passes="canonicalize, user", patterns=path)
    with pytest.raises(RuleError, match=message):
        PassManager(ortfuse.Options(passes="user", patterns=[tmp_path]))
    entry = EntryPoint("acme", "mine", catalogue_module.ENTRY_POINTS)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(catalogue_module, "entry_points", lambda group: [entry])
    with pytest.raises(RuleError, match=message):
        load_catalogue()
    sys.modules.pop("mine", None)


def test_rules_without_a_proof_cannot_be_handed_over_as_objects_either() -> None:
    class Own(Rule):
        def __post_init__(self) -> None:
            pass

    known = next(iter(load_catalogue().rules()))
    fields = {field.name: getattr(known, field.name) for field in dataclasses.fields(known)} | {"test": None}
    unproved: Any = Own(**fields)
    model = ir.from_onnx_text('<ir_version: 9, opset_import: ["": 18]> g (float[2] x) => (float[2] y) { y = Neg(x) }')
    for hand_over in (
        lambda: dataclasses.replace(known, test=None),
        lambda: RulePass("fuse.mine", (unproved,)),
        lambda: Rewriter(Editor(model, Facts(model)), Target()).run([unproved]),
    ):
        with pytest.raises(RuleError, match="has no rule test"):
            hand_over()


def test_a_built_in_catalogue_that_fails_to_load_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(name: str) -> object:
        raise ModuleNotFoundError("No module named 'numpy'", name="numpy")

    monkeypatch.setattr(catalogue_module.importlib, "import_module", fail)
    with pytest.raises(ModuleNotFoundError, match="numpy"):
        catalogue_module._built_in_package()
