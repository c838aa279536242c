"""What `ortfuse.graph.schemas` says of operators: which outputs may be left out, tried out in the runtime."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from benchmarks.trust.outputs import FORMS, MS, Trial, claimed, outcome, trials
from ortfuse.graph import schemas
from ortfuse.graph.schemas import droppable_outputs

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
