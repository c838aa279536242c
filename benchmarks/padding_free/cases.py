"""Encoders of full size whose batches are padded, of both exporters."""

from __future__ import annotations

from dataclasses import replace

from exporting import Case

from benchmarks.exports import full_cases
from benchmarks.exports.building import built

_TAKEN = ("bert", "minilm", "t5_encoder", "deberta", "clip_text")

CASES = (
    *(replace(case, exporters=("ts", "dynamo")) for case in full_cases.CASES if case.name in _TAKEN),
    Case(
        "roberta",
        built("RobertaModel", "RobertaConfig", pad_token_id=1, vocab_size=50265, max_position_embeddings=514),
        full_cases.text(50265),
        full_cases.TOKEN_SIZES,
        full_cases.SDPA,
        exporters=("ts", "dynamo"),
    ),
)
