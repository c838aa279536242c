from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from rule_files import HEAD

from ortfuse.analysis.facts import Facts
from ortfuse.errors import RuleError
from ortfuse.ir.editor import Editor
from ortfuse.pipeline import discover_rule_files, load_catalogue
from ortfuse.pipeline.build_rule_index import index_of, text_of
from ortfuse.pipeline.rule_catalogue import RuleFile
from ortfuse.pipeline.rule_index import FILE, RuleIndex
from ortfuse.rewrite import DeferredRule, Rewriter, Rule, missing_shapes
from ortfuse.rewrite.lazily_loaded_rule import deferred, stored_properties
from ortfuse.targets import Target

ROOT = Path(__file__).parents[2]
HELPERS = HEAD + "def twice(name, made):\n    return rule(name, made(made(x)), x)\n"
MODEL = """<ir_version: 10, opset_import: ["" : 20]>
agraph (float[2] x) => (float[2] y) { a = Neg(x) b = Neg(a) y = Relu(b) }"""


@pytest.fixture
def built_in() -> tuple[RuleFile, ...]:
    return tuple(file for file in load_catalogue().files if file.source == "built-in")


def of_a_folder(folder: Path, name: str, index: RuleIndex | None) -> dict[str, RuleFile]:
    package: ModuleType = discover_rule_files._folder_as_package(folder, name)
    return dict(discover_rule_files._by_path(package, "built-in", index=index))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A catalogue of two families, with an index."""
    for path, text in {
        "_shared.py": HELPERS,
        "signs/__init__.py": "PASS = 'fuse.signs'\n",
        "signs/neg.py": "from .._shared import op, twice\nRULES = [twice('signs.neg_neg', op.Neg)]\n",
        "inverse.py": "from ._shared import op, twice\nRULES = [twice('inverse.not_not', op.Not)]\nTARGETS = ('cpu',)\n",
    }.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    files = of_a_folder(tmp_path, f"written_{tmp_path.name}", None)
    (tmp_path / FILE).write_text(text_of(index_of(tmp_path, f"written_{tmp_path.name}", files.values())))
    return tmp_path


def read(folder: Path) -> dict[str, RuleFile]:
    return of_a_folder(folder, f"read_{folder.name}", RuleIndex.of(folder))


def loaded(folder: Path) -> set[str]:
    package = f"read_{folder.name}."
    return {name.removeprefix(package) for name in sys.modules if name.startswith(package)}


def is_deferred(file: RuleFile) -> bool:
    return all(isinstance(entry, DeferredRule) for entry in file.entries)


def test_the_index_has_what_the_rules_say(built_in: tuple[RuleFile, ...]) -> None:
    made = text_of(index_of(ROOT / "patterns", "ortfuse.patterns", built_in))
    assert (ROOT / "patterns" / FILE).read_text(encoding="utf-8") == made, "run python docs/rule_index.py"


def test_built_in_rules_declare_nothing_wrong(built_in: tuple[RuleFile, ...]) -> None:
    """Rules that the index has are not checked when they are loaded."""
    for rule in (rule for file in built_in for rule in file.rules):
        rule.check()
        assert missing_shapes(rule) == []


def test_all_built_in_files_are_loaded_when_they_are_needed(built_in: tuple[RuleFile, ...]) -> None:
    assert [file.origin for file in built_in if not is_deferred(file)] == []


def test_what_stands_for_a_rule_has_its_properties(built_in: tuple[RuleFile, ...]) -> None:
    for rule in (rule for file in built_in for rule in file.rules):
        stored: Mapping[str, Any] = json.loads(json.dumps(stored_properties(rule)))
        found = deferred(stored, {rule.name: rule}.__getitem__)
        for name in (
            "name",
            "family",
            "exactness",
            "because",
            "is_refinement",
            "reach",
            "heads",
            "required",
            "marks",
            "depths",
        ):
            assert getattr(found, name) == getattr(rule, name), (rule.name, name)
        assert found._below == rule.matcher.below
        assert not found.is_rule(rule)
        assert found.loaded() is rule
        assert found.is_rule(rule)


def test_a_catalogue_is_the_same_with_and_without_an_index(built_in: tuple[RuleFile, ...]) -> None:
    package = sys.modules["ortfuse.patterns"]
    without = [file for _, file in discover_rule_files._by_path(package, "built-in")]
    facts = [
        (file.pass_name, file.origin, file.source, file.targets, [rule.name for rule in file.rules]) for file in without
    ]
    assert facts == [
        (file.pass_name, file.origin, file.source, file.targets, [entry.name for entry in file.entries])
        for file in built_in
    ]
    assert all(
        a is b
        for one, other in zip(without, built_in, strict=True)
        for a, b in zip(one.rules, other.rules, strict=True)
    )


def test_files_are_loaded_when_one_of_their_rules_is_tried(folder: Path) -> None:
    files = read(folder)
    assert files["signs/neg"].pass_name == "fuse.signs"
    assert files["inverse"].targets == ("cpu",)
    assert loaded(folder) == {"signs"}
    entries = [entry for file in files.values() for entry in file.entries]
    model = ir.from_proto(onnx.parser.parse_model(MODEL))
    assert Rewriter(Editor(model, Facts(model)), Target()).run(entries) == 1
    assert [node.op_type for node in model.graph] == ["Relu"]
    assert loaded(folder) == {"signs", "signs.neg", "_shared"}


def test_a_wrong_rule_is_refused_where_no_index_has_it(folder: Path) -> None:
    text = (folder / "inverse.py").read_text().replace("[twice(", "[rule('no_family', op.Not(x), x), twice(")
    (folder / "inverse.py").write_text(text.replace("op, twice", "op, rule, twice, x"))
    with pytest.raises(RuleError, match="rule name 'no_family'"):
        read(folder)


def test_a_rule_is_told_apart_from_another_of_its_name(folder: Path) -> None:
    known = discover_rule_files.Catalogue(tuple(read(folder).values()))
    own = Rule.__new__(Rule)
    object.__setattr__(own, "name", "signs.neg_neg")
    assert not known.is_built_in(own)
    assert all(known.is_built_in(rule) for rule in known.rules())


@pytest.mark.parametrize("changed", ["signs/neg.py", "_shared.py"])
def test_a_file_that_changed_or_imports_one_is_loaded_at_once(folder: Path, changed: str) -> None:
    with (folder / changed).open("a") as file:
        file.write("# changed\n")
    found = read(folder)
    assert not is_deferred(found["signs/neg"])
    assert is_deferred(found["inverse"]) == (changed != "_shared.py")


def test_a_new_file_is_found_and_one_that_is_gone_is_not(folder: Path) -> None:
    (folder / "inverse.py").rename(folder / "other.py")
    found = read(folder)
    assert [*found] == ["other", "signs/neg"]
    assert [rule.name for rule in found["other"].rules] == ["inverse.not_not"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: text.replace('"format": 1', '"format": 0'),
        lambda text: text.replace('"heads"', '"roots"').replace('"exactness": "', '"exactness": "not '),
    ],
)
def test_without_a_usable_index_all_is_loaded(folder: Path, damage: Any) -> None:
    file = folder / FILE
    file.write_text(damage(file.read_text()))
    found = read(folder)
    assert not any(map(is_deferred, found.values()))
    assert sorted(rule.name for file in found.values() for rule in file.rules) == ["inverse.not_not", "signs.neg_neg"]
