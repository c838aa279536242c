"""The golden models: real exports, what the pass lists make of them, and that they still compute the same."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ortfuse.io.load_and_save import load
from ortfuse.pipeline import PassManager
from ortfuse.pipeline.built_in_passes import BUILT_IN
from ortfuse.rewrite import Exactness
from ortfuse.runtime.bench import executed_ops, typical_inputs
from ortfuse.verification import verify

sys.path.insert(0, str(Path(__file__).parents[2] / "golden"))
import suite

FAMILIES = {
    "bert.sdpa.ts": "bert", "bert.eager.dynamo": "bert", "roberta.sdpa.ts": "bert", "deberta.ts": "deberta",
    "t5_encoder.sdpa.ts": "t5", "gpt2.sdpa.ts": "gpt", "gpt2_cache.sdpa.dynamo": "gpt", "marian.sdpa.ts": "gpt",
    "llama.sdpa.ts": "llama", "llama_cache.sdpa.dynamo": "llama", "gptj.eager.ts": "llama", "cohere.sdpa.dynamo": "llama",
    "whisper_encoder.sdpa.ts": "whisper", "wav2vec2_conformer_rotary.ts": "conformer", "vit.sdpa.ts": "vit",
    "segformer.sdpa.ts": "vit", "swin.sdpa.ts": "swin", "sam_encoder.sdpa.ts": "swin", "unet.sdpa.ts": "unet",
    "resnet.ts": "resnet", "resnet.dynamo": "resnet", "resnet.qdq": "resnet", "detr.sdpa.ts": "mixed", "yolo.ts": "yolo",
    "mobilenet2.dynamo": "mobilenet", "efficientnet.tsbn": "efficientnet", "lstm_loop.ts": "rnn", "gru_cells.raw": "rnn",
    "lstm_cells.ts": "rnn", "speech.ts": "speech", "temporal.tsbn": "convnet", "style_transfer.dynamo": "convnet",
    "suppression.ts": "yolo", "suppression.dynamo": "yolo", "keras_unet.keras": "unet", "unet_groups.ts": "unet",
    "style_transfer.ts": "convnet", "sampler.ts": "convnet", "sampler.dynamo": "convnet",
}  # fmt: skip
"""The families of golden models, by what they are."""

NAMES = suite.expected_names()
EACH = pytest.mark.parametrize("name", NAMES, scope="module")
"""One model after the other, all tests of each, so that the process which has its result runs them all."""

EXECUTED_AS_THEY_ARE = {
    *("Attention", "MultiHeadAttention", "RotaryEmbedding", "LayerNormalization", "RMSNormalization", "Sum"),
    *("Gelu", "BiasGelu", "FastGelu", "QuickGelu", "Swish"),
}
SLOWER = {"SkipLayerNormalization", "SkipSimplifiedLayerNormalization"}


@EACH
@pytest.mark.sample(5)
def test_every_site_is_fused_and_the_result_is_as_expected(name: str) -> None:
    report = suite.optimised(name).report
    found = suite.outcome(report)
    lines = suite.difference(suite.stored(name), found)
    assert not lines, f"{name} is not as expected (golden/refresh.py {name} --write if it is better):\n" + "\n".join(
        lines
    )
    assert suite.missing(found["operators"], suite.sites(name)) == suite.explained(name)


@EACH
@pytest.mark.sample(5)
def test_passes_that_are_declared_exact_round_nothing(name: str) -> None:
    exact = {one.name for one in BUILT_IN.values() if one.exactness is Exactness.EXACT}
    assert not exact & suite.optimised(name).report.log.rounded.keys()


@pytest.mark.parametrize("name", FAMILIES, scope="module")
def test_auto_takes_the_list_of_the_golden_models_family_and_says_why(name: str) -> None:
    report = suite.optimised(name).report
    assert report.pass_list.startswith(f"{FAMILIES[name]}, since the model has ")
    # What the list leaves out costs nothing.
    every = PassManager("all").run(load(suite.MODELS / f"{name}.onnx"))
    assert report.after.operators == every.after.operators


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("bert")])
def test_a_layer_is_small_and_free_of_shape_arithmetic(name: str) -> None:
    for layer in suite.nodes_of_layers(suite.optimised(name).model):
        assert sum(layer.values()) <= 20, layer
        assert not suite.SHAPE_ARITHMETIC & layer.keys(), layer


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith(("lstm", "gru", "speech"))])
def test_a_recurrent_network_is_an_operator_for_each_layer(name: str) -> None:
    operators = suite.outcome(suite.optimised(name).report)["operators"]
    assert operators.get("LSTM", 0) + operators.get("GRU", 0) == suite.sites(name)["layers"]
    assert not operators.keys() & {"Loop", "Sigmoid", "Tanh", "SequenceAt", "ConcatFromSequence", "ConstantOfShape"}


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("resnet") and not name.endswith("qdq")])
def test_a_resnet_is_convolutions_pools_sums_and_the_head(name: str) -> None:
    operators = suite.outcome(suite.optimised(name).report)["operators"]
    head = {"GlobalAveragePool", "ReduceMean", "Flatten", "Reshape", "Gemm"}
    assert operators.keys() <= {"Conv", "com.microsoft.FusedConv", "MaxPool", "AveragePool", "Add", "Relu"} | head
    # With so few channels the runtime has no blocked convolutions, whose residual sums and their ReLU are fused.
    relus = [node for node in suite.optimised(name).model.graph if node.op_type == "Relu"]
    assert all(relu.inputs[0].producer().op_type == "Add" for relu in relus)


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("repvgg")])
def test_each_block_of_a_repvgg_is_one_convolution(name: str) -> None:
    operators = suite.outcome(suite.optimised(name).report)["operators"]
    assert operators.get("Conv", 0) + operators.get("com.microsoft.FusedConv", 0) == 5
    assert not operators.keys() & {"Add", "BatchNormalization"}


@EACH
@pytest.mark.sample(5)
def test_the_result_computes_the_same(name: str) -> None:
    original = load(suite.MODELS / f"{name}.onnx")
    verdict = verify(original, suite.optimised(name).model)
    assert verdict.ok, verdict.summary()
    assert len({trial.inputs for trial in verdict.trials}) >= 3


@EACH
@pytest.mark.sample(5)
def test_the_runtime_executes_what_was_fused_and_fuses_nothing_that_is_slower(name: str) -> None:
    model = suite.optimised(name).model
    fused = {node.op_type for node in model.graph.all_nodes()} & EXECUTED_AS_THEY_ARE
    made = Counter(node.op_type for node in model.graph if node.op_type in fused)
    executed = suite.executed(name)
    assert {kind: executed[kind] for kind in made} == made
    assert not executed.keys() & SLOWER


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("bert")])
def test_a_row_without_any_key_comes_out_as_before(name: str) -> None:
    mask = np.ones((3, 8), np.int64)
    mask[1] = 0
    mask[2, 3:] = 0
    ids = np.arange(24).reshape(3, 8) % 7
    inputs: list[dict[str, Any]] = [{"input_ids": ids, "attention_mask": mask, "token_type_ids": ids % 2}]
    original = load(suite.MODELS / f"{name}.onnx")
    verdict = verify(original, suite.optimised(name).model, inputs=inputs)
    assert verdict.ok, verdict.summary()


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("keras_") and "convnext" not in name])
def test_a_network_of_keras_keeps_the_one_transpose_of_its_image(name: str) -> None:
    operators = suite.outcome(suite.optimised(name).report)["operators"]
    assert operators["Transpose"] == 1


TRANSPOSED_IN_PARTS = ("suppression",)
"""Parts are transposed one by one instead of all at once: the centres and sizes of boxes, without the scores of classes, which stay
as they are."""

STEPS_FIRST = ("gru_cells", "gru_loop", "lstm_cells", "lstm_loop")
"""Steps that were taken apart are one operator, which has the steps first."""


@EACH
@pytest.mark.sample(5)
def test_no_more_is_transposed_than_by_the_runtime_alone(name: str) -> None:
    executed = suite.executed(name)["Transpose"]
    if executed and not name.startswith((*TRANSPOSED_IN_PARTS, *STEPS_FIRST)):
        original = load(suite.MODELS / f"{name}.onnx")
        assert executed <= executed_ops(original, typical_inputs(original)[1])["Transpose"]
