"""Unused outputs that may be left out: the claims of `ortfuse.ir.schemas`, tried out.

    python -m benchmarks.trust.outputs         # every operator, version and form below; writes the summary
    python -m benchmarks.trust.outputs Dropout # these operators, without storing figures

Each form is run in a process that may crash, with all its outputs and with every selection of the optional ones left out:
the trailing ones removed, the trailing ones with an empty name instead, and those in the middle with an empty name. The others
must keep their bits, with the runtime's own optimisations and without. `tests/ir/test_schemas.py` runs a sample.
"""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import onnx
import onnx_ir as ir

from benchmarks.results import Results
from ortfuse.errors import CrashError, VerificationError
from ortfuse.ir.schemas import droppable_outputs
from ortfuse.runtime.session import Session

NEWEST_IR = 11

MS = "com.microsoft."
RECURRENT = "float[3,2,4] x, float[1,{g},4] w, float[1,{g},6] r"
RECURRENT_BACK = "float[3,2,4] x, float[2,{g},4] w, float[2,{g},6] r"
HEADS = "float[2,4,3,8] q, float[2,4,3,8] k, float[2,4,3,8] v, float[2,4,5,8] p, float[2,4,5,8] t"
MERGED = "float[2,3,32] q, float[2,3,32] k, float[2,3,32] v, float[2,4,5,8] p, float[2,4,5,8] t"
STEP = "float[2,1,32] q, float[2,1,32] k, float[2,1,32] v, float[2,4,5,8] p, float[2,4,5,8] t"
GROUPS = "float[2,1,32] q, float[2,1,16] k, float[2,1,16] v, float[2,2,5,8] p, float[2,2,5,8] t"
EMBEDDING = "float[9,8] x, float[7,8] p, float[2,8] s, float[8] w, float[8] c"
IDS = "int32[2,3] i = {1,2,3,4,5,6}, int32[2,3] g = {0,0,1,0,1,1}, int32[2,3] a = {1,1,0,1,1,1}"
QUANTIZED = "uint8[2,3,8] x, float[24] c, float p, float k, float[2,2,2,5,4] t"
PACKED = "float[2,3,8] x, float[8,24] w, float[24] c, float[2,2,2,5,4] t"
HASHES = "pad_id = 0, n_head_per_ngram = 2, max_ngram_size = 3"
NGRAMS = "int64[3] u = {3,5,7}, int64[4] v = {11,13,17,19}, int64[2,4] i = {1,2,3,4,5,6,7,8}, int64[2,2] t = {9,8,7,6}"
LAYER = "float[2,3,8] x, float[8] w, float[8] c"
SKIP = "float[2,3,8] x, float[2,3,8] s, float[8] w, float[8] c, float[8] b"


def _bytes(shape: str, name: str) -> str:
    """A constant of varying uint8."""
    count = math.prod(map(int, shape.split(",")))
    return f"uint8[{shape}] {name} = {{{','.join(str(7 * number % 11) for number in range(count))}}}"


ZERO, WEIGHT = "uint8 z = {3}", _bytes("8,24", "w")
GATES = f"uint8[1] z = {{3}}, {_bytes('1,4,8', 'w')}, {_bytes('1,2,8', 'r')}"


class Form(NamedTuple):
    """A node with all its outputs: its opsets, the call, inputs with random numbers, and constants."""

    operator: str
    opsets: tuple[int, ...]
    outputs: str
    attributes: str
    operands: str
    inputs: str
    constants: str = ""


def _recurrent(name: str, gates: int, outputs: str) -> Iterator[Form]:
    opsets = (7, 14, 22)
    yield Form(name, opsets, outputs, "hidden_size = 6", "x, w, r", RECURRENT.format(g=gates * 6))
    both = 'hidden_size = 6, direction = "bidirectional"'
    yield Form(name, opsets, outputs, both, "x, w, r", RECURRENT_BACK.format(g=gates * 6))


FORMS = [
    Form("Dropout", (7, 10, 12, 13, 22), "y, m", "", "x", "float[2,3] x"),
    Form("Dropout", (12, 13, 22), "y, m", "seed = 1", "x, r, t", "float[2,3] x", "float r = {0.5}, bool t = {0}"),
    Form("MaxPool", (8, 10, 11, 12, 22), "y, i", "kernel_shape = [2, 2]", "x", "float[1,2,4,4] x"),
    Form("MaxPool", (12, 22), "y, i", "kernel_shape = [2], strides = [2]", "x", "int8[1,2,6] x"),
    Form("MaxPool", (10, 22), "y, i", "kernel_shape = [2, 2], storage_order = 1, dilations = [2, 1], pads = [0, 1, 1, 0]",
         "x", "float[1,2,5,5] x"),
    Form("LayerNormalization", (11, 17), "y, m, v", "", "x, w, c", LAYER),
    Form("LayerNormalization", (11, 17), "y, m, v", "axis = 1", "x, w", "float16[2,3,8] x, float16[3,8] w"),
    Form("SimplifiedLayerNormalization", (17,), "y, v", "", "x, w", LAYER),
    Form("Unique", (11,), "y, i, j, c", "", "x", "", "int64[6] x = {3,1,3,2,1,9}"),
    Form("Unique", (11,), "y, i, j, c", "axis = 0, sorted = 0", "x", "", "float[3,2] x = {1,2,0,1,1,2}"),
    *_recurrent("LSTM", 4, "y, h, c"),
    *_recurrent("GRU", 3, "y, h"),
    *_recurrent("RNN", 1, "y, h"),
    Form("Attention", (23, 24), "y, u, w, s", "", "q, k, v", HEADS),
    Form("Attention", (23, 24), "y, u, w, s", "", "q, k, v, , p, t", HEADS),
    Form("Attention", (23, 24), "y, u, w, s", "is_causal = 1, q_num_heads = 4, kv_num_heads = 4", "q, k, v, , p, t", MERGED),
    Form("Attention", (23, 24), "y, u, w, s", "qk_matmul_output_mode = 3, q_num_heads = 4, kv_num_heads = 4", "q, k, v", MERGED),
    Form(f"{MS}Attention", (17,), "y, u", "num_heads = 2", "x, w, c", PACKED),
    Form(f"{MS}Attention", (17,), "y, u", "num_heads = 2", "x, w, c, , t", PACKED),
    Form(f"{MS}QAttention", (17,), "y, u", "num_heads = 2", "x, w, c, p, k, , z, z", QUANTIZED, f"{ZERO}, {WEIGHT}"),
    Form(f"{MS}QAttention", (17,), "y, u", "num_heads = 2, unidirectional = 1", "x, w, c, p, k, , z, z, t", QUANTIZED,
         f"{ZERO}, {WEIGHT}"),
    Form(f"{MS}MultiHeadAttention", (17,), "y, u, w", "num_heads = 4", "q, k, v", MERGED),
    Form(f"{MS}MultiHeadAttention", (17,), "y, u, w", "num_heads = 4", "q, k, v, , , , p, t", MERGED),
    Form(f"{MS}GroupQueryAttention", (17,), "y, u, w", "num_heads = 4, kv_num_heads = 2", "q, k, v, p, t, n, e", GROUPS,
         "int32[2] n = {5,5}, int32[1] e = {6}"),
    Form(f"{MS}GroupQueryAttention", (17,), "y, u, w", "num_heads = 4, kv_num_heads = 2", "q, k, v, , , n, e",
         "float[2,3,32] q, float[2,3,16] k, float[2,3,16] v", "int32[2] n = {2,2}, int32[1] e = {3}"),
    Form(f"{MS}DecoderMaskedMultiHeadAttention", (17,), "y, u, w", "num_heads = 4, past_present_share_buffer = 1",
         "q, k, v, , , p, t, n", STEP, "int32[1] n = {3}"),
    Form(f"{MS}EmbedLayerNormalization", (17,), "y, m, e", "", "i, , x, p, , w, c", EMBEDDING, IDS),
    Form(f"{MS}EmbedLayerNormalization", (17,), "y, m, e", "", "i, g, x, p, s, w, c, a", EMBEDDING, IDS),
    Form(f"{MS}EmbedLayerNormalization", (17,), "y, m, e", "mask_index_type = 0", "i, g, x, p, s, w, c", EMBEDDING, IDS),
    Form(f"{MS}SkipLayerNormalization", (17,), "y, m, v, u", "", "x, s, w, c, b", SKIP),
    Form(f"{MS}SkipLayerNormalization", (17,), "y, m, v, u", "", "x, s, w", SKIP.replace("float[", "float16[")),
    Form(f"{MS}SkipSimplifiedLayerNormalization", (17,), "y, m, v, u", "", "x, s, w, b", SKIP),
    Form(f"{MS}DynamicQuantizeLSTM", (17,), "y, h, c", "hidden_size = 2", "x, w, r, , , , , , k, z, k, z",
         "float[3,2,4] x, float[1] k", GATES),
    Form(f"{MS}EngramGate", (17,), "y, n", "", "k, q, v, a, b, c",
         "float[2,3,2,8] k, float[2,3,2,8] q, float[2,3,8] v, float[2,8] a, float[2,8] b, float[2,8] c"),
    Form(f"{MS}LinearAttentionGate", (17,), "d, e", "", "a, p, s, b",
         "float[2,3,4] a, float[4] p, float[4] s, float[2,3,4] b"),
    Form(f"{MS}NGramHashMapping", (17,), "h, n", HASHES, "i, u, v", "", NGRAMS),
    Form(f"{MS}NGramHashMapping", (17,), "h, n", HASHES, "i, u, v, t", "", NGRAMS),
]  # fmt: skip


class Trial(NamedTuple):
    """A form at one opset with some of its outputs left out: their names, and how."""

    form: Form
    opset: int
    left_out: tuple[str, ...]
    outputs: str

    def __str__(self) -> str:
        node = f"{self.form.operator}({self.form.operands})" + (
            f" <{self.form.attributes}>" if self.form.attributes else ""
        )
        return f"{self.outputs} = {node} at {self.opset}"


def trials(form: Form) -> Iterator[Trial]:
    """Every selection of a form's outputs but all of them, and each way of leaving the others out."""
    names = form.outputs.split(", ")
    for opset in form.opsets:
        for count in range(1, len(names)):
            for left_out in itertools.combinations(names, count):
                shown = ["" if name in left_out else name for name in names]
                written = ", ".join(shown)
                yield Trial(form, opset, left_out, written)
                if not shown[-1]:
                    yield Trial(form, opset, left_out, written.rstrip(", "))


def model(form: Form, opset: int, outputs: str) -> onnx.ModelProto:
    """The model of a form with these outputs; the names in them are the model's outputs, of undeclared type."""
    attributes = f" <{form.attributes}>" if form.attributes else ""
    used = [one for one in form.inputs.split(", ") if one.split(" ")[-1] in form.operands.split(", ")]
    text = f"""<ir_version: 8, opset_import: ["" : {opset}, "com.microsoft" : 1]>
        g ({", ".join(used)}) => () <{form.constants}> {{
        {outputs} = {form.operator}{attributes} ({form.operands}) }}"""
    proto = onnx.parser.parse_model(text)
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in outputs.split(", ") if name)
    return proto


def claimed(trial: Trial) -> bool:
    """Whether ortfuse says that these outputs may be left out."""
    proto = model(trial.form, trial.opset, trial.form.outputs)
    node = ir.from_proto(proto).graph[0]
    names = trial.form.outputs.split(", ")
    return {names.index(name) for name in trial.left_out} <= droppable_outputs(node)


def outcome(trial: Trial) -> str:
    """`same`; or `differs`, `refused`, `crashes`; or that the runtime does not execute the form with all its outputs."""
    whole = model(trial.form, trial.opset, trial.form.outputs)
    part = model(trial.form, trial.opset, trial.outputs)
    inputs = _inputs(whole)
    for optimise in (False, True):
        try:
            expected = Session(whole.SerializeToString(), optimise=optimise).run(inputs)
        except VerificationError:
            return "not executed"
        try:
            found = Session(part.SerializeToString(), optimise=optimise).run(inputs)
        except CrashError:
            return "crashes"
        except VerificationError:
            return "refused"
        if not all(np.array_equal(found[name], expected[name], equal_nan=True) for name in found):
            return "differs"
    return "same"


def _inputs(proto: onnx.ModelProto) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    found = {}
    for value in proto.graph.input:
        kind = value.type.tensor_type
        array = rng.standard_normal([dim.dim_value for dim in kind.shape.dim])
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        found[value.name] = np.asarray(abs(array) * 10 if dtype.kind in "iu" else array).astype(dtype)
    return found


def main(names: list[str]) -> int:
    """Try the forms of some operators, or all; the exit code is 1 if a claim is wrong."""
    counts: Counter[str] = Counter()
    wrong, more = [], []
    for form in FORMS:
        for trial in trials(form) if not names or form.operator in names else ():
            found = outcome(trial)
            counts[f"{'claimed' if claimed(trial) else 'not claimed'}, {found}"] += 1
            if claimed(trial) and found != "same":
                wrong.append(f"{found}: {trial}")
            elif found == "same" and not claimed(trial):
                more.append(str(trial))
    result = {
        "trials": dict(sorted(counts.items())),
        "wrong": wrong,
        "not claimed although the same": more,
    }
    if not names:
        Results("trust.outputs").store("python -m benchmarks.trust.outputs", result)
    print(json.dumps(result, indent=1))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
