"""Exports the golden models: ``python golden/export.py [NAME ...]``.

Writes ``golden/models/<arch>[.<attention>].<exporter>.onnx`` and a ``.json`` beside each that says what PyTorch
executed. A NAME is a whole name (``bert.sdpa.ts``) or a leading part of one (``bert``, ``bert.eager``); no NAME means
all.

To add an architecture, add a ``Case`` to ``CASES`` of its family in ``golden/cases``.
"""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Annotated

import transformers as tf
import typer
from cases import CASES as FAMILIES
from exporting import EXPORTERS, Case, Input, count_again, export_all, select
from torch import nn

FOLDER = Path(__file__).parent / "models"
TOLERANCE = 1e-4
SIZE_LIMIT = 400_000

TOKEN_SIZES = ({"batch": 2, "sequence": 9}, {"batch": 3, "sequence": 14})
IMAGE_SIZES = ({"batch": 2}, {"batch": 3})


def bert(attention: str, attentions: bool = False) -> nn.Module:
    """BERT encoder with pooler, 2 layers of 4 heads of 8; `attentions` asks for the weights of attention as well."""
    config = tf.BertConfig(
        vocab_size=100,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=64,
        max_position_embeddings=64,
        output_attentions=attentions,
        attn_implementation=attention,
    )
    return tf.BertModel(config)


def resnet() -> nn.Module:
    """ResNet classifier of bottleneck blocks, 3 in 2 stages."""
    config = tf.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[2, 1], layer_type="bottleneck", num_labels=10
    )
    return tf.ResNetForImageClassification(config)


BERT_INPUTS = {
    "input_ids": Input(("batch", "sequence"), "tokens", high=100),
    "attention_mask": Input(("batch", "sequence"), "mask"),
    "token_type_ids": Input(("batch", "sequence"), "tokens", high=2),
}

CASES = (
    Case("bert", bert, BERT_INPUTS, TOKEN_SIZES, attentions=("eager", "sdpa"), exporters=(*EXPORTERS, "ts14")),
    Case(
        "bert_attentions",
        functools.partial(bert, attentions=True),
        BERT_INPUTS,
        TOKEN_SIZES,
        attentions=("eager",),
        exporters=("ts", "dynamo"),
    ),
    Case(
        "resnet",
        resnet,
        inputs={"pixel_values": Input(("batch", 3, 32, 32), "normal")},
        sizes=IMAGE_SIZES,
        exporters=(*EXPORTERS, "tsbn", "qdq"),
    ),
    *FAMILIES,
)


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Models to export; all when none is named.")] = None,
    count: Annotated[bool, typer.Option("--count", help="Only count again what PyTorch executes.")] = False,
) -> None:
    """Export golden models; failures are recorded in golden/models/FAILED.json."""
    try:
        chosen = select(CASES, names or [])
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if count:
        for variant in chosen:
            if (FOLDER / f"{variant.name}.json").is_file():
                count_again(variant, FOLDER)
    elif export_all(chosen, FOLDER, tolerance=TOLERANCE, limit=SIZE_LIMIT):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
