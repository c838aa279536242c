"""Names of the past stand for those of today wherever a user or a stored file may name a thing."""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir
import pytest

from ortfuse.cli.regression_check import _fewer_sites, _sites
from ortfuse.errors import OrtfuseError, PipelineError
from ortfuse.naming import RenamedWarning, former_names, name_today, names_today, number_by_name
from ortfuse.naming import former_rules_and_passes as module
from ortfuse.options import Options
from ortfuse.pipeline import PassManager, load_catalogue, passes
from ortfuse.pipeline.descriptions import described
from ortfuse.pipeline.pass_lists import built_in_lists
from ortfuse.pipeline.run_rules_of_forced_choices_first import checked
from ortfuse.pipeline.steps import AUTO, CANONICALIZE, FUSIONS, USER
from ortfuse.quantization.apply_schemes_without_search import named
from ortfuse.quantization.quantization_sites import quantization_rules
from ortfuse.quantization.scheme_families import family_of
from ortfuse.targets import CostTable
from ortfuse.testing.expectation import Expectation
from ortfuse.tuning.rule_costs.measurement_candidates import candidates
from ortfuse.verification.explanation import chosen_rules

RULE, FAMILY = "gelu.from_tanh_form", "gelu"


@functools.cache
def _today() -> dict[str, set[str]]:
    catalogue = load_catalogue()
    rules = list(catalogue.rules())
    return {
        "rules": {rule.name for rule in rules},
        "families": {rule.family for rule in rules},
        "passes": {CANONICALIZE, FUSIONS, USER, AUTO, *catalogue.passes(), *passes()},
        "pass_lists": set(built_in_lists()),
    }


@pytest.fixture
def former(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Former names of things that exist, and nothing told yet."""
    names = {
        "rules": {"old.tanh": RULE, "old.scheme": next(iter(quantization_rules()))},
        "families": {"old": FAMILY, "old_scheme": family_of(next(iter(quantization_rules())))},
        "passes": {"tidy_up": "dce", "fuse.old": "fuse.activation"},
        "pass_lists": {"everything": "all"},
    }
    monkeypatch.setattr(module, "former_names", lambda: names)
    monkeypatch.setattr(module, "_told", set())
    yield


@pytest.mark.parametrize("kind", ["rules", "families", "passes", "pass_lists"])
def test_former_names_stand_for_what_exists_and_are_no_names_of_today(kind: str) -> None:
    names = former_names()[kind]  # type: ignore[index]
    # Sites of a pass are counted by its name, as those of rules by their family; rules that became one have its name.
    others = _today()["passes"] if kind in ("families", "rules") else set()
    assert set(names.values()) <= _today()[kind] | others
    assert not names.keys() & _today()[kind]


def test_a_name_that_changed_twice_stands_for_the_last() -> None:
    assert module._resolved({"a": "b", "b": "c"}) == {"a": "c", "b": "c"}
    with pytest.raises(OrtfuseError, match="leads back"):
        module._resolved({"a": "b", "b": "a"})


def test_a_former_name_is_told_once(former: None) -> None:
    with pytest.warns(RenamedWarning, match=r"`old\.tanh` is now called `gelu\.from_tanh_form`"):
        assert name_today("old.tanh", ["rules"]) == RULE
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert name_today("old.tanh", ["rules"]) == RULE
        assert names_today("x old.tanh", ["rules"]) == f"x {RULE}"


def test_what_exists_today_means_itself(former: None) -> None:
    assert name_today("old", ["families"], {"old"}) == "old"


def test_passes_and_lists_and_rules_of_a_pipeline(former: None) -> None:
    with pytest.warns(RenamedWarning):
        manager = PassManager(
            'fixpoint(tidy_up, fold), fuse.old{without="old.tanh"}, everything{without="fuse.old tidy_up"}'
        )
        with_today = PassManager(
            f'fixpoint(dce, fold), fuse.activation{{without="{RULE}"}}, all{{without="fuse.activation dce"}}'
        )
    model = ir.Model(ir.Graph([], [], nodes=[], opset_imports={"": 20}), ir_version=9)
    text = manager.pipeline_for(model)
    assert text == with_today.pipeline_for(model)
    assert "fuse.old" not in text
    assert "tidy_up" not in text


def test_a_pass_list_file_may_have_former_names(former: None, tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text('passes = ["tidy_up"]\n', encoding="utf-8")
    with pytest.warns(RenamedWarning):
        PassManager(Options(passes="mine", lists=[tmp_path]))


def test_pins(former: None) -> None:
    rules = list(load_catalogue().rules())
    with pytest.warns(RenamedWarning):
        assert checked({"old": "none", "old.tanh": "none"}, rules) == {FAMILY: "none", RULE: "none"}


def test_a_pass_is_not_forced() -> None:
    with pytest.raises(PipelineError, match="cse is a pass, and choices are of rules and families"):
        checked({"cse": "none"}, [])


def test_rules_to_explain(former: None) -> None:
    catalogue = load_catalogue()
    with pytest.warns(RenamedWarning):
        assert chosen_rules(catalogue, ["old.tanh"]).keys() == {RULE}
    with pytest.warns(RenamedWarning):
        assert chosen_rules(catalogue, ["old"]) == chosen_rules(catalogue, [FAMILY])


def test_rules_to_measure(former: None) -> None:
    rules = list(load_catalogue().rules())
    family = next(rule.family for rule in rules if rule.test.typical)
    module.former_names()["families"]["measured"] = family  # type: ignore[index]
    with pytest.warns(RenamedWarning):
        found = candidates(rules, ["measured"], CostTable({}))
    assert [one.rule.name for one in found] == [one.rule.name for one in candidates(rules, [family], CostTable({}))]


def test_schemes(former: None) -> None:
    rules = quantization_rules()
    with pytest.warns(RenamedWarning):
        assert named(rules, ["old.scheme", "old_scheme"]).keys() == named(rules, [family_of(next(iter(rules)))]).keys()


def test_what_passes_tells_of(former: None) -> None:
    there = described(load_catalogue(), built_in_lists())
    with pytest.warns(RenamedWarning):
        assert there.of("old.tanh") == there.of(RULE)
        assert there.of(family="old") == there.of(family=FAMILY)
        assert there.of("tidy_up") == there.of("dce")


def test_stored_numbers_of_what_has_become_one_add_up(former: None) -> None:
    assert number_by_name({"old": 2, FAMILY: 1, "x": 3}, "families") == {FAMILY: 3, "x": 3}
    before, now = {"families": {"old": 2}}, {"families": {FAMILY: 2}}
    assert not [*_fewer_sites(_sites(before), _sites(now))]


def test_costs_of_a_users_table(former: None) -> None:
    content = {"source": "here", "speedups": {"old.tanh": {"x 1x8": 2.0}, RULE: {"x 1x16": 3.0}}}
    table = CostTable.from_json(content)
    assert [row.speedup for row in table.speedups[RULE]] == [2.0, 3.0]
    assert table.speedups.keys() == {RULE}


def test_expectations_of_a_users_models(former: None, tmp_path: Path) -> None:
    stored = {"families": {"old": 1}, "improved": {}, "executed": {}, "verdict": "equal", "versions": {}}
    (tmp_path / "m.json").write_text(json.dumps(stored), encoding="utf-8")
    read = Expectation.read(tmp_path / "m.json")
    assert read is not None
    assert read.families == {FAMILY: 1}


def test_a_rule_that_became_part_of_a_pass_is_left_out_by_no_pass_of_rules() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RenamedWarning)
        PassManager('fuse.convolution{without="conv.fold_batchnorm"}, all{without="fuse.scale_shift"}')
