"""Small convolutional networks never execute more operators than before, what the runtime reorders for its blocks included."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import ortfuse
from ortfuse.io.convert_model_objects import enter
from ortfuse.runtime.bench import executed_ops

SIZE = 8
RNG = np.random.default_rng(0)


class Network:
    """A network that is written operator by operator, in which `{x}` is the result of the last one."""

    def __init__(self, channels: int) -> None:
        self.channels, self.value, self.lines, self.constants = 3, "image", list[str](), dict[str, np.ndarray]()
        self.convolve(channels, 3)

    def constant(self, array: object) -> str:
        name, found = f"c{len(self.constants)}", np.asarray(array)
        self.constants[name] = found.astype(np.int64 if found.dtype.kind == "i" else np.float32)
        return name

    def write(self, text: str) -> str:
        name = f"v{len(self.lines)}"
        self.lines.append(f"{name} = {text.format(x=self.value)}")
        self.value = name
        return name

    def convolve(self, channels: int, size: int = 1) -> None:
        weight = self.constant(RNG.standard_normal((channels, self.channels, size, size)))
        self.write(f"Conv<pads = {[size // 2] * 4}>({{x}}, {weight})")
        self.channels = channels

    def times(self, text: str) -> None:
        """The last result times something that is made of it."""
        before = self.value
        made = self.write(text)
        self.write(f"Mul({before}, {made})")

    def excite(self, pool: str) -> None:
        """Squeeze and excitation."""
        before, channels = self.value, self.channels
        self.pool(pool)
        self.convolve(channels // 4)
        self.write("Relu({x})")
        self.convolve(channels)
        self.write("Sigmoid({x})")
        self.write(f"Mul({before}, {{x}})")

    def join(self) -> None:
        before = self.value
        self.convolve(self.channels)
        self.write(f"Concat<axis = 1>({{x}}, {before})")
        self.channels *= 2

    def pool(self, kind: str) -> None:
        self.write(f"{kind}({{x}})")

    def normalise(self) -> None:
        before = self.value
        length = self.write("ReduceL2<axes = [1]>({x})")
        self.write(f"Div({before}, {length})")

    def model(self) -> onnx.ModelProto:
        made = onnx.parser.parse_model(
            f'<ir_version: 9, opset_import: ["": 17]> g (float[1,3,{SIZE},{SIZE}] image) => (float {self.value})'
            f"{{ {' '.join(self.lines)} }}"
        )
        made.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in self.constants.items())
        made.graph.output[0].type.tensor_type.ClearField("shape")
        return made


BEFORE = {
    "": lambda net: None,
    "Relu": lambda net: net.write("Relu({x})"),
    "Clip": lambda net: net.write(f"Clip({{x}}, {net.constant(0.0)}, {net.constant(6.0)})"),
    "HardSwish": lambda net: net.times("HardSigmoid<alpha = 0.16666667>({x})"),
    "Concat": Network.join,
    "Erf": lambda net: net.write("Erf({x})"),
}
MEANS = {
    "GlobalAveragePool": "GlobalAveragePool",
    "AveragePool": f"AveragePool<kernel_shape = [{SIZE}, {SIZE}]>",
    "ReduceMean": "ReduceMean<axes = [2, 3]>",
}


def executed(model: onnx.ModelProto) -> int:
    return sum(
        executed_ops(enter(model)[0], {"image": RNG.standard_normal((1, 3, SIZE, SIZE)).astype(np.float32)}).values()
    )


def assert_no_more(net: Network) -> None:
    before = net.model()
    after = ortfuse.optimize(before).model
    assert executed(after) <= executed(before), [node.op_type for node in after.graph.node]


@pytest.mark.parametrize("before", BEFORE)
@pytest.mark.parametrize("mean", MEANS)
@pytest.mark.parametrize("channels", [16, 24])
def test_means_of_images_that_are_read_by_convolutions(before: str, mean: str, channels: int) -> None:
    net = Network(channels)
    BEFORE[before](net)
    net.excite(MEANS[mean])
    net.pool(MEANS[mean])
    net.convolve(16)
    assert_no_more(net)


@pytest.mark.parametrize("before", ["Relu", "HardSwish"])
def test_means_that_drop_their_axes(before: str) -> None:
    net = Network(16)
    BEFORE[before](net)
    net.pool("ReduceMean<axes = [2, 3], keepdims = 0>")
    assert_no_more(net)


def test_means_of_an_image_that_is_reordered_for_others_too() -> None:
    net = Network(16)
    image = net.value
    mean = net.write("ReduceMean<axes = [2, 3]>({x})")
    net.write(f"Sub({image}, {mean})")
    assert_no_more(net)


def test_lengths_of_short_vectors() -> None:
    net = Network(16)
    net.pool("GlobalAveragePool")
    net.write("Flatten({x})")
    net.normalise()
    assert_no_more(net)
