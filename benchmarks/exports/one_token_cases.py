"""Models that read one token of the last layer, in sizes that people run: classifiers, embeddings, rerankers, and decoders."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from cases.common import image
from exporting import Case
from torch import nn

from benchmarks.exports.building import build, built
from benchmarks.exports.full_cases import DEBERTA, IMAGE_SIZES, SDPA, TOKEN_SIZES, text

VOCABULARY = 8000
"""Fewer tokens than these models have: embeddings are read, and cost nothing beside the layers."""

SMALL: Mapping[str, Any] = {"hidden_size": 384, "num_attention_heads": 12, "intermediate_size": 1536}
PICTURE: Mapping[str, Any] = {**SMALL, "num_attention_heads": 6}
LLAMA: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 512,
    "intermediate_size": 1408,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "use_cache": False,
}
BOTH = ("ts", "dynamo")


class Only(nn.Module):
    """A model of whose outputs one is left, or its last token."""

    def __init__(self, model: nn.Module, output: str, last: bool = False) -> None:
        super().__init__()
        self.model, self.output, self.last = model, output, last

    def forward(
        self, input_ids: torch.Tensor | None = None, attention_mask: torch.Tensor | None = None,
        pixel_values: torch.Tensor | None = None,
    ) -> torch.Tensor:  # fmt: skip
        """The output."""
        given = {"input_ids": input_ids, "attention_mask": attention_mask, "pixel_values": pixel_values}
        found = self.model(**{name: value for name, value in given.items() if value is not None})[self.output]
        return found[:, -1] if self.last else found


def only(output: str, kind: str, config: str, options: Mapping[str, Any], attention: str) -> nn.Module:
    """A model with one output."""
    return Only(build(kind, config, options, attention), output)


def last(kind: str, config: str, options: Mapping[str, Any], attention: str) -> nn.Module:
    """A decoder with the logits of the last token."""
    return Only(build(kind, config, options, attention), "logits", last=True)


TEXT, PICTURES = text(VOCABULARY), image(224)

CASES = (
    Case(
        "bert_classifier",
        built("BertForSequenceClassification", "BertConfig", vocab_size=VOCABULARY, num_hidden_layers=12, **SMALL),
        TEXT, TOKEN_SIZES, SDPA, BOTH,
    ),
    Case(
        "cross_encoder",
        built(
            "BertForSequenceClassification", "BertConfig", vocab_size=VOCABULARY, num_hidden_layers=6, num_labels=1, **SMALL
        ),
        TEXT, TOKEN_SIZES, SDPA, BOTH,
    ),
    Case(
        "deberta_classifier",
        built("DebertaV2ForSequenceClassification", "DebertaV2Config", **{
            **DEBERTA, **SMALL, "vocab_size": VOCABULARY, "num_attention_heads": 6, "num_hidden_layers": 6,
        }),
        TEXT, TOKEN_SIZES, ("eager",), BOTH,
    ),
    Case(
        "vit_classifier",
        built("ViTForImageClassification", "ViTConfig", num_hidden_layers=6, num_labels=1000, **PICTURE),
        PICTURES, IMAGE_SIZES, SDPA, BOTH,
    ),
    Case(
        "clip_image",
        partial(only, "image_embeds", "CLIPVisionModelWithProjection", "CLIPVisionConfig", {
            "num_hidden_layers": 6, "patch_size": 16, **PICTURE,
        }),
        PICTURES, IMAGE_SIZES, SDPA, BOTH,
    ),
    Case(
        "clip_text",
        partial(only, "text_embeds", "CLIPTextModelWithProjection", "CLIPTextConfig", {
            "num_hidden_layers": 6, "vocab_size": VOCABULARY, "bos_token_id": 1, "eos_token_id": 2,
        }),
        TEXT, TOKEN_SIZES, SDPA, BOTH,
    ),
    Case("llama_last", partial(last, "LlamaForCausalLM", "LlamaConfig", LLAMA), TEXT, TOKEN_SIZES, SDPA, BOTH),
    Case(
        "qwen_reranker",
        built("Qwen2ForSequenceClassification", "Qwen2Config", num_labels=1, pad_token_id=0, **LLAMA),
        TEXT, TOKEN_SIZES, SDPA, BOTH,
    ),
)  # fmt: skip
