"""A Llama of any size as a real export with external data, made without ever being in memory.

PyTorch exports it from fake tensors, which have a shape and no elements; the data file is made here. It is either sparse
(holes, with a page of random bytes in each mebibyte, so that no two weights are equal) or written in full.
"""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

HEAD, VOCABULARY = 128, 32000
_PAGE, _MEBIBYTE = 1 << 12, 1 << 20


def size_of(gigabytes: float) -> tuple[int, int]:
    """Hidden size and number of layers of a decoder with about so many gigabytes of float32 weights."""
    hidden = 5120 if gigabytes >= 8 else 2048 if gigabytes >= 1 else 512
    per_layer = 4 * (2.5 * hidden**2 + 3 * 2.7 * hidden**2)
    return hidden, max(1, round((gigabytes * 1e9 - 4 * 2 * VOCABULARY * hidden) / per_layer))


def make_decoder(path: Path, gigabytes: float, *, written: bool, transposed: bool) -> dict[str, Any]:
    """Write the decoder to `path` and its weights to `<path>.data`.

    Args:
        path: The model file.
        gigabytes: The size of the weights, about.
        written: Whether every byte of the data file is written; else it is sparse.
        transposed: Whether weights lie as PyTorch has them, behind Transpose nodes, as unoptimised exports have them; else
            they lie as MatMul takes them.

    Returns:
        What was made: layers, hidden size, nodes, bytes of the data file and of the disk that it takes.
    """
    hidden, layers = size_of(gigabytes)
    model = _export(hidden, layers)
    if not transposed:
        _transpose_weights(model.graph)
    size = _move_out(model.graph, path)
    _fill(path.with_name(path.name + ".data"), size, written)
    ir.save(model, path)
    taken = path.with_name(path.name + ".data").stat().st_blocks * 512
    return {"layers": layers, "hidden": hidden, "nodes": len(model.graph), "bytes": size, "bytes_on_disk": taken}


def _export(hidden: int, layers: int) -> ir.Model:
    import torch
    import transformers as tf
    from torch._subclasses.fake_tensor import FakeTensorMode

    class Decoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            config = tf.LlamaConfig(
                hidden_size=hidden,
                intermediate_size=27 * hidden // 10,
                num_hidden_layers=layers,
                num_attention_heads=hidden // HEAD,
                num_key_value_heads=hidden // HEAD // 4,
                vocab_size=VOCABULARY,
                attn_implementation="sdpa",
            )
            self.model = tf.LlamaForCausalLM(config)

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
            found: torch.Tensor = self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=False).logits
            return found

    axes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("sequence")}
    with FakeTensorMode(allow_non_fake_inputs=True), warnings.catch_warnings(action="ignore"):
        tokens = torch.ones(2, 24, dtype=torch.int64)
        program = torch.onnx.export(
            Decoder().eval(), (tokens, tokens), dynamo=True, optimize=False, verbose=False,
            dynamic_shapes={"input_ids": axes, "attention_mask": axes},
        )  # fmt: skip
    assert program is not None
    model: ir.Model = program.model
    for value in model.graph.initializers.values():
        if value.name is not None and value.name.endswith("inv_freq"):
            frequencies = 1e4 ** (-np.arange(0, HEAD, 2, dtype=np.float32) / HEAD)
            value.const_value = ir.tensor(frequencies.astype(np.float32), name=value.name)
    return model


def _transpose_weights(graph: ir.Graph) -> None:
    """Let the shapes of weights be those after their Transpose nodes; their bytes are anybody's."""
    for node in list(graph):
        source = node.inputs[0] if node.op_type == "Transpose" else None
        if source is None or not source.is_initializer() or len(source.uses()) > 1:
            continue
        assert source.shape is not None
        source.shape = ir.Shape(reversed(source.shape.numpy()))
        node.outputs[0].replace_all_uses_with(source)
        graph.remove(node, safe=True)


def _move_out(graph: ir.Graph, path: Path) -> int:
    """Give all fake weights a place in the data file; returns its size."""
    size = 0
    for value in graph.initializers.values():
        tensor = value.const_value
        assert tensor is not None
        if tensor.nbytes < 1 << 10:
            continue
        size += -size % _PAGE
        shape = value.shape
        assert shape is not None
        value.const_value = ir.ExternalTensor(
            f"{path.name}.data", size, tensor.nbytes, tensor.dtype, shape=shape, name=value.name or "", base_dir=path.parent
        )  # fmt: skip
        size += tensor.nbytes
    return size


def _fill(path: Path, size: int, written: bool) -> None:
    random = np.random.default_rng(0)
    with path.open("wb") as file:
        file.truncate(size)
        for start in range(0, size, _MEBIBYTE):
            count = min(_MEBIBYTE if written else _PAGE, size - start) // 4
            file.seek(start)
            file.write(random.standard_normal(count, np.float32).tobytes() if written else random.bytes(4 * count))
        file.flush()
        os.fsync(file.fileno())
