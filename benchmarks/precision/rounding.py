"""Error of rounded weights by the number of inputs: each quantisation scheme at every site, without inputs and with some.

    python -m benchmarks.precision.rounding                    # needs PyTorch and transformers, 6 minutes on two cores

Nothing comes from a hub: one model is a decoder that is trained here for some hundred steps to predict the bytes of Python's
standard library, the others have random weights. The error is the relative L2 error of the output on inputs that no scheme has
seen, in the mean over them.
"""

from __future__ import annotations

import sysconfig
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import ortfuse
from benchmarks.results import Results
from ortfuse.quantization.metrics import METRICS
from ortfuse.runtime.int8_matmul_saturation import saturates
from ortfuse.runtime.session import Session
from ortfuse.targets.processor import processor_in_full

COMMAND = "python -m benchmarks.precision.rounding"
SCHEMES = (
    "weight_int4.block32_level1",
    "weight_int4.block128_level1_zeros",
    "weight_int8.block128_level1",
    "dynamic_int8.channel",
)
GIVEN, UNSEEN = (0, 8, 32), 24
LENGTH = 64
BYTES = 256

Inputs = list[dict[str, Any]]


def text() -> np.ndarray[Any, Any]:
    """The bytes of the standard library's modules."""
    folder = Path(sysconfig.get_path("stdlib"))
    found = b"".join(file.read_bytes() for file in sorted(folder.glob("*.py")))
    return np.frombuffer(found, np.uint8).astype(np.int64)


def trained(target: Path, steps: int) -> Inputs:
    """Train a decoder and export it; the inputs are pieces of text."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    data = torch.from_numpy(text())
    config = LlamaConfig(
        vocab_size=BYTES, hidden_size=256, intermediate_size=704, num_hidden_layers=4, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512,
    )  # fmt: skip
    network = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(network.parameters(), weight_decay=0.05)
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 2e-3 * min(1.0, step / 50) * (1 - step / (steps + 50))
        starts = torch.randint(0, len(data) - 96, (12,))
        rows = torch.stack([data[start : start + 96] for start in starts])
        loss = network(input_ids=rows, labels=rows).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
        optimizer.step()
    _export(network, target)
    rng = np.random.default_rng(1)
    starts = rng.integers(0, len(data) - LENGTH, max(GIVEN) + UNSEEN)
    return [{"input_ids": data[start : start + LENGTH].numpy()[None]} for start in starts]


def random_weights(target: Path, steps: int) -> Inputs:
    """Export a BERT with random weights; the inputs are random, too."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    network = BertModel(
        BertConfig(num_hidden_layers=4, hidden_size=384, num_attention_heads=6, intermediate_size=1536)
    ).eval()
    for parameter in network.parameters():
        if parameter.ndim == 1:
            parameter.data += 0.1 * torch.randn_like(parameter)
    _export(network, target)
    rng = np.random.default_rng(1)
    return [{"input_ids": rng.integers(0, 1000, (1, LENGTH))} for _ in range(max(GIVEN) + UNSEEN)]


MODELS = {"decoder, trained": trained, "BERT, random weights": random_weights}


def _export(network: Any, target: Path) -> None:
    import torch

    class First(torch.nn.Module):
        """The first output alone."""

        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def forward(self, input_ids: Any) -> Any:
            """The first output."""
            return self.network(input_ids=input_ids, return_dict=False)[0]

    network.eval()
    network.config.use_cache = False
    sizes = {"input_ids": {0: "batch", 1: "sequence"}}
    example = (torch.zeros((2, LENGTH), dtype=torch.int64),)
    torch.onnx.export(
        First(), example, str(target), dynamo=True, input_names=["input_ids"], dynamic_shapes=sizes, external_data=False
    )


def errors(path: Path, inputs: Inputs, scheme: str) -> dict[str, float]:
    """Return the error of a quantisation scheme at every site, by the number of inputs that it was given."""
    unseen = inputs[max(GIVEN) :]
    expected, found = _outputs(path, unseen), {}
    for count in GIVEN:
        made = ortfuse.lower(path, scheme, inputs=inputs[:count] or None).model
        outputs = _outputs(made, unseen)
        each = [METRICS["l2"].of([a], [b], [c]).error for a, b, c in zip(expected, outputs, unseen, strict=True)]
        found[str(count)] = float(f"{np.mean(each):.3g}")
    return found


def _outputs(model: Any, inputs: Inputs) -> list[Mapping[str, Any]]:
    session = Session(str(model) if isinstance(model, Path) else model)
    return [session.run(one) for one in inputs]


def main(
    steps: Annotated[int, typer.Option(help="How long the decoder is trained.")] = 400,
    output: Annotated[Path | None, typer.Option(help="File of the raw result; the summary goes beside it.")] = None,
) -> None:
    """Measure by how much inputs lower the error of rounded weights."""
    rows: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, make in MODELS.items():
            path = Path(folder) / "model.onnx"
            inputs = make(path, steps)
            rows[name] = {scheme: errors(path, inputs, scheme) for scheme in SCHEMES}
    table = Table(title="Error by the number of sets of inputs that a scheme was given", title_justify="left")
    for heading in ("model", "scheme", *map(str, GIVEN)):
        table.add_column(heading)
    for name, schemes in rows.items():
        for scheme, found in schemes.items():
            table.add_row(name, scheme, *(f"{found[str(count)]:.2g}" for count in GIVEN))
    Console().print(table)
    found = {
        "processor": processor_in_full(), "bits of signed weights": 7 if saturates() else 8, "steps": steps, "models": rows
    }  # fmt: skip
    Results("precision.rounding", output).store(COMMAND, found)


if __name__ == "__main__":
    typer.run(main)
