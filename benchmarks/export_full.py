"""Exports full-size models to measure on: ``python benchmarks/export_full.py [--folder FOLDER] [NAME ...]``.

Each model is one ``.onnx`` file with random weights inside it, checked against PyTorch, and a ``.json`` beside it, in
the form of the golden models (``golden/exporting.py``). Together they take several gigabytes; they are not kept in git.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import transformers as tf
import typer
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "golden"))

from exporting import Case, Input, export_all, select

FOLDER = Path(__file__).parent / ".models"
# Of an output's largest magnitude: float32 sums over thousands of terms, in another order.
TOLERANCE = 1e-4

TOKEN_SIZES = ({"batch": 2, "sequence": 24}, {"batch": 3, "sequence": 17})
IMAGE_SIZES = ({"batch": 2}, {"batch": 3})
IMAGE = {"pixel_values": Input(("batch", 3, 224, 224), "normal")}


def bert(attention: str) -> nn.Module:
    """BERT-base encoder with pooler."""
    return tf.BertModel(tf.BertConfig(attn_implementation=attention))


def gpt2(attention: str) -> nn.Module:
    """GPT-2 (124 M) with its language model head, without key/value cache."""
    return tf.GPT2LMHeadModel(tf.GPT2Config(use_cache=False, attn_implementation=attention))


def swin(attention: str) -> nn.Module:
    """Swin-T image classifier, window 7."""
    return tf.SwinForImageClassification(tf.SwinConfig(num_labels=1000, attn_implementation=attention))


def resnet50() -> nn.Module:
    """ResNet-50 image classifier."""
    return tf.ResNetForImageClassification(tf.ResNetConfig(num_labels=1000))


CASES = (
    Case(
        "bert",
        bert,
        inputs={
            "input_ids": Input(("batch", "sequence"), "tokens", high=30522),
            "attention_mask": Input(("batch", "sequence"), "mask"),
            "token_type_ids": Input(("batch", "sequence"), "tokens", high=2),
        },
        sizes=TOKEN_SIZES,
        attentions=("sdpa",),
    ),
    Case(
        "gpt2",
        gpt2,
        inputs={
            "input_ids": Input(("batch", "sequence"), "tokens", high=50257),
            "attention_mask": Input(("batch", "sequence"), "mask"),
        },
        sizes=TOKEN_SIZES,
        attentions=("sdpa",),
    ),
    Case("swin", swin, inputs=IMAGE, sizes=IMAGE_SIZES, attentions=("sdpa",)),
    Case("resnet50", resnet50, inputs=IMAGE, sizes=IMAGE_SIZES),
)


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Models to export; all when none is named.")] = None,
    folder: Annotated[Path, typer.Option(help="Where to write the models.")] = FOLDER,
) -> None:
    """Export full-size models; failures are recorded in FAILED.json in the folder."""
    try:
        chosen = select(CASES, names or [])
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    if export_all(chosen, folder, tolerance=TOLERANCE, relative=True):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
