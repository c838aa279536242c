"""How choices are compared with those of measuring every site. Nothing here is measured."""

from __future__ import annotations

from pathlib import Path

from benchmarks.calibration.measure import Site, at_stake, total, verdict

GOLDEN = Path(__file__).parents[2] / "golden" / "models"


def test_a_choice_is_the_same_where_both_take_the_rewrite_or_neither_does() -> None:
    assert Site("r", "x 1", 1.5, 1.1).same
    assert Site("r", "x 1", 0.5, 0.8).same
    assert not Site("r", "x 1", 0.5, 1.2).same
    assert Site("r", "x 1", 1.2, None).same  # what the table does not have is taken
    assert not Site("r", "x 1", 0.5, None).same


def test_close_sites_are_counted_apart() -> None:
    sites = [
        Site("r", "x 1", 1.5, 1.1, {"a", "b"}),
        Site("r", "x 2", 0.98, 0.9, {"c"}),
        Site("r", "x 3", 0.5, 1.1, {"d"}),
    ]
    assert verdict(sites) == {"sites": 4, "same": 2, "clear": 3, "same of clear": 2}


def test_the_rules_at_stake_are_those_about_which_a_model_has_a_choice() -> None:
    assert "layernorm.add_to_skip_layer_normalization" in at_stake([GOLDEN / "bert.sdpa.ts.onnx"])


def test_models_add_up() -> None:
    row = {"sites": 4, "same": 3, "clear": 2, "same of clear": 2, "different": []}
    assert total({"a": row, "b": row}) == {"sites": 8, "same": 6, "clear": 4, "same of clear": 4}
