"""What `ortfuse.ir.schemas` says of operators: which outputs may be left out, tried out in the runtime."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from benchmarks.trust.outputs import FORMS, MS, Trial, claimed, outcome, trials
from ortfuse.ir import schemas
from ortfuse.ir.schemas import attribute_default, droppable_outputs, keeps_meaning

CLAIMED = [trial for form in FORMS for trial in trials(form) if trial.opset == form.opsets[-1] and claimed(trial)]


def test_every_output_that_may_be_left_out_is_tried() -> None:
    tried = {
        (trial.form.operator, trial.form.outputs.split(", ").index(name))
        for trial in CLAIMED
        for name in trial.left_out
    }
    listed = {
        ((MS if domain else "") + name, index)
        for (domain, name), indices in schemas._DROPPABLE.items()
        for index in indices
    }
    assert listed == tried


@pytest.mark.parametrize("trial", CLAIMED[::3], ids=str)
def test_an_output_that_may_be_left_out_changes_nothing(trial: Trial) -> None:
    assert outcome(trial) == "same"


@pytest.mark.parametrize(
    "name",
    [
        *(
            "com.microsoft.MultiHeadAttention",
            "com.microsoft.GroupQueryAttention",
            "BatchNormalization",
            "Split",
            "TopK",
        ),
        *("com.microsoft.DecoderMaskedMultiHeadAttention", "com.microsoft.BeamSearch", "my.domain.LayerNormalization"),
    ],
)
def test_no_output_of_an_operator_that_is_not_listed_may_be_left_out(name: str) -> None:
    domain, _, op_type = name.rpartition(".")
    assert not droppable_outputs(ir.node(op_type, [], domain=domain, num_outputs=4))


@pytest.mark.parametrize(
    ("domain", "operator", "name", "default"),
    [
        ("", "LayerNormalization", "epsilon", 1e-5),
        ("com.microsoft", "SkipLayerNormalization", "epsilon", 1e-12),
        ("", "SimplifiedLayerNormalization", "epsilon", 1e-5),
        ("com.microsoft", "FusedMatMul", "alpha", 1.0),
    ],
)
def test_defaults_of_operators_that_onnx_does_not_define_are_those_of_the_runtime(
    domain: str, operator: str, name: str, default: float
) -> None:
    assert attribute_default(domain, operator, 17 if not domain else 1, name) == pytest.approx(default)


@pytest.mark.parametrize(
    ("domain", "operator", "name"),
    [
        ("com.microsoft", "MultiHeadAttention", "scale"),
        ("com.microsoft", "FusedMatMul", "nothing"),
        ("my.domain", "SkipLayerNormalization", "epsilon"),
    ],
)
def test_what_no_schema_gives_has_no_default(domain: str, operator: str, name: str) -> None:
    assert attribute_default(domain, operator, 1, name) is None


def test_the_table_of_defaults_is_that_of_the_runtime() -> None:
    for (domain, name), attributes in schemas.runtime_defaults().items():
        known = schemas._known_defaults().get(f"{domain}::{name}")
        if known is not None:  # another version of the runtime may have others, which it is asked for
            assert known == {key: value for key, value in attributes.items() if value is not None}, name


def test_an_operator_that_the_table_lacks_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schemas, "_known_defaults", dict)
    assert schemas._defaults_of("com.microsoft", "SkipLayerNormalization")["epsilon"] == pytest.approx(1e-12)


@pytest.mark.parametrize(
    ("operator", "one", "other", "same"),
    [
        ("Add", 7, 14, True), ("Reshape", 13, 23, True), ("ArgMax", 11, 13, True), ("Clip", 11, 13, True), ("Pad", 11, 18, True),
        ("Softmax", 11, 13, False), ("Clip", 6, 11, False), ("ReduceMean", 13, 18, False), ("RoiAlign", 10, 16, False),
        ("GroupNormalization", 18, 21, False), ("Upsample", 9, 10, False), ("NoSuchOperator", 1, 2, True),
    ],
)  # fmt: skip
def test_definitions_that_only_took_on_types_and_options_mean_the_same(
    operator: str, one: int, other: int, same: bool
) -> None:
    assert keeps_meaning(operator, one, other) is keeps_meaning(operator, other, one) is same
