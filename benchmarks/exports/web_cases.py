"""Models of the sizes that browsers run, by the configurations of published ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cases.blocks import Gate, Inputs, unit
from cases.caching import CachedDecoder, cache_inputs
from cases.common import IMAGE_SIZES, TS_AND_DYNAMO, image
from exporting import Case
from torch import Tensor, nn

from benchmarks.exports import full_cases as full
from benchmarks.exports.building import build, built, layered
from benchmarks.exports.networks import LABELS, yolo

VIT_TINY: Mapping[str, Any] = {"hidden_size": 192, "num_attention_heads": 3, "intermediate_size": 768}
SMOLLM: Mapping[str, Any] = {
    "vocab_size": 49152,
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "tie_word_embeddings": True,
}
"""SmolLM of 135 million weights."""


class Residual(nn.Module):
    """The block of MobileNet 3: widened if it is to be, depthwise, gated if it is to be, narrowed (arXiv:1905.02244)."""

    def __init__(
        self, inputs: int, hidden: int, outputs: int, kernel: int, stride: int, act: nn.Module, gated: bool
    ) -> None:
        super().__init__()
        self.body = nn.Sequential(
            unit(inputs, hidden, 1, act=act) if hidden != inputs else nn.Identity(),
            unit(hidden, hidden, kernel, stride, hidden, act),
            Gate(hidden, nn.Hardsigmoid(), nn.ReLU()) if gated else nn.Identity(),
            unit(hidden, outputs, 1, act=nn.Identity()),
        )
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.body(x)
        return x + y if self.residual else y


def mobilenet3_small() -> nn.Module:
    """MobileNet 3 small, table 2 of its paper."""
    relu, swish = nn.ReLU(), nn.Hardswish()
    blocks = [
        Residual(16, 16, 16, 3, 2, relu, True),
        Residual(16, 72, 24, 3, 2, relu, False),
        Residual(24, 88, 24, 3, 1, relu, False),
        Residual(24, 96, 40, 5, 2, swish, True),
        *(Residual(40, 240, 40, 5, 1, swish, True) for _ in range(2)),
        Residual(40, 120, 48, 5, 1, swish, True),
        Residual(48, 144, 48, 5, 1, swish, True),
        Residual(48, 288, 96, 5, 2, swish, True),
        *(Residual(96, 576, 96, 5, 1, swish, True) for _ in range(2)),
    ]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(576, 1024), swish, nn.Linear(1024, LABELS)]
    return Inputs(nn.Sequential(unit(3, 16, 3, 2, act=swish), *blocks, unit(96, 576, 1, act=swish), *head))


def smollm_step(attention: str) -> nn.Module:
    """SmolLM with past keys and values."""
    return layered(CachedDecoder, ("input_ids", "attention_mask"), 30)(
        build("LlamaForCausalLM", "LlamaConfig", SMOLLM, attention)
    )


def _cases() -> Iterator[Case]:
    known = {case.name: case for case in full.CASES}
    for name in ("minilm", "distilbert", "whisper_encoder", "whisper_step"):
        case = known[name]
        yield Case(name, case.build, case.inputs, case.sizes, full.SDPA, TS_AND_DYNAMO)
    steps = full.step(49152) | cache_inputs("past", 3, "past", 64, 30)
    yield Case("smollm_step", smollm_step, steps, full.STEP_SIZES, full.SDPA, ("int4",))
    vit = built("ViTForImageClassification", "ViTConfig", **VIT_TINY, num_labels=LABELS)
    yield Case("vit_tiny", vit, image(224), IMAGE_SIZES, full.SDPA, TS_AND_DYNAMO)
    segformer = built("SegformerForSemanticSegmentation", "SegformerConfig", num_labels=150)
    yield Case("segformer_b0", segformer, image(512), IMAGE_SIZES, full.SDPA, TS_AND_DYNAMO)
    mobilenet2 = built("MobileNetV2ForImageClassification", "MobileNetV2Config", num_labels=LABELS)
    for name, make, size in (
        ("mobilenet2", mobilenet2, 224),
        ("mobilenet3_small", mobilenet3_small, 224),
        ("yolo", yolo, 320),
    ):
        yield Case(name, make, image(size), IMAGE_SIZES, exporters=TS_AND_DYNAMO)


CASES = tuple(_cases())
