"""Models whose weights are larger than what optimising them may take of the memory."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import ortfuse

SIDE = 2048
WEIGHT = 4 * SIDE**2
CHANGED = 8
"""So many weights are transposed, and two more than that cast to another type."""

SCRIPT = """
import re, sys
from pathlib import Path
import ortfuse
from ortfuse.transforms import spill_constants
from ortfuse.transforms.cleanup import constant_folding
constant_folding._BATCH_BYTES, spill_constants.IN_MEMORY = 1 << 25, 1 << 23

def peak():
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10

source, target, small = sys.argv[1:]
ortfuse.optimize(small)
Path("/proc/self/clear_refs").write_text("5")
before = peak()
ortfuse.optimize(source).save(target)
print(peak() - before)
"""


def _external(name: str, offset: int) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[SIDE, SIDE])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": "m.data", "offset": str(offset), "length": str(WEIGHT)}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def _write_model(folder: Path) -> Path:
    """A chain of matrix products; the weights are holes in a file, but for one element each, and the last three equal."""
    nodes, initializers, value = [], [], "x"
    with (folder / "m.data").open("wb") as file:
        for index in range(2 * CHANGED + 2):
            initializers.append(_external(f"w{index}", index * WEIGHT))
            file.seek(index * WEIGHT + 4 * (SIDE + 2))
            file.write(np.float32(min(index, 2 * CHANGED - 1) + 1).tobytes())
            if index < CHANGED:
                change = {"op_type": "Transpose", "perm": [1, 0]}
            else:
                change = {"op_type": "Cast", "to": TensorProto.FLOAT16}
            if index == CHANGED:
                nodes.append(helper.make_node("Cast", [value], ["half"], to=TensorProto.FLOAT16))
                value = "half"
            nodes.append(helper.make_node(inputs=[f"w{index}"], outputs=[f"changed{index}"], **change))
            nodes.append(helper.make_node("MatMul", [value, f"changed{index}"], [f"v{index}"]))
            value = f"v{index}"
        file.truncate(len(initializers) * WEIGHT)
    nodes.append(helper.make_node("Identity", [value], ["y"]))
    graph = helper.make_graph(
        nodes, "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", SIDE])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT16, ["n", SIDE])],
        initializers,
    )  # fmt: skip
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 20)]), folder / "m.onnx")
    return folder / "m.onnx"


@pytest.mark.skipif(
    not Path("/proc/self/clear_refs").exists(), reason="the peak of the memory cannot be asked for here"
)
def test_a_model_is_optimised_and_saved_in_less_memory_than_its_weights_take(tmp_path: Path) -> None:
    path = _write_model(tmp_path)
    text = '<ir_version: 10, opset_import: ["": 20]> g (float[n] x) => (float[n] y) { y = Sin(x) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "small.onnx")
    command = [sys.executable, "-c", SCRIPT, path, tmp_path / "o.onnx", tmp_path / "small.onnx"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    assert int(done.stdout) < 8 * WEIGHT, "all weights take 18 times as much, the changed ones 12 times"
    after = ortfuse.load(tmp_path / "o.onnx")
    tensors = [value.const_value for value in after.graph.initializers.values()]
    assert len(tensors) == 2 * CHANGED, "three of the cast weights are equal"
    for index, tensor in enumerate(tensors):
        assert tensor is not None
        place = (2, 1) if index < CHANGED else (1, 2)
        array = tensor.numpy()
        assert array.dtype == (np.float32 if index < CHANGED else np.float16)
        assert np.argwhere(array).tolist() == [list(place)]
        assert array[place] == index + 1
