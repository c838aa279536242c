"""Tools that people use on an optimised model, each as a function from file to file.

A tool is called with the model, the file that it is to write, and inputs to calibrate with. It raises if it does not work, and
answers with the file if that has to have another name. All are used as their documentation says, with their defaults.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import onnx

Inputs = Mapping[str, Any]
Apply = Callable[[Path, Path, Sequence[Inputs]], Path | None]


class Tool(NamedTuple):
    """A tool: what is applied, and the package that it comes with."""

    apply: Apply
    package: str
    narrows: bool = False
    """Whether it stores weights in fewer bits."""


def checker(source: Path, target: Path, given: Sequence[Inputs]) -> None:
    """`onnx.checker.check_model(MODEL, full_check=True)`."""
    onnx.checker.check_model(source, full_check=True)
    onnx.save(onnx.load(source), target)


def shape_inference(source: Path, target: Path, given: Sequence[Inputs]) -> None:
    """The standard's shape inference, strict, with types and data."""
    model = onnx.shape_inference.infer_shapes(onnx.load(source), check_type=True, strict_mode=True, data_prop=True)
    onnx.save(model, target)


def symbolic_shape_inference(auto_merge: bool, source: Path, target: Path, given: Sequence[Inputs]) -> None:
    """`python -m onnxruntime.tools.symbolic_shape_infer`, with `--auto_merge` or without."""
    from onnxruntime.tools.symbolic_shape_infer import SymbolicShapeInference

    onnx.save(SymbolicShapeInference.infer_shapes(onnx.load(source), auto_merge=auto_merge), target)


def quantize_preprocess(source: Path, target: Path, given: Sequence[Inputs]) -> None:
    """`python -m onnxruntime.quantization.preprocess`."""
    from onnxruntime.quantization.shape_inference import quant_pre_process

    quant_pre_process(source, target)


def quantize_dynamic(source: Path, target: Path, given: Sequence[Inputs]) -> None:
    """`onnxruntime.quantization.quantize_dynamic(MODEL, RESULT)`."""
    from onnxruntime.quantization import quantize_dynamic

    quantize_dynamic(source, target)


def quantize_static(source: Path, target: Path, given: Sequence[Inputs]) -> None:
    """`onnxruntime.quantization.quantize_static(MODEL, RESULT, READER)`."""
    from onnxruntime.quantization import CalibrationDataReader, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self) -> None:
            self._left: Iterator[Inputs] = iter(given)

        def get_next(self) -> dict[str, Any] | None:
            found = next(self._left, None)
            return None if found is None else dict(found)

    quantize_static(source, target, Reader())


def quantize_weights(source: Path, target: Path, given: Sequence[Inputs]) -> None:
    """`python -m onnxruntime.quantization.matmul_nbits_quantizer`: weights of four bits."""
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    quantizer = MatMulNBitsQuantizer(onnx.load(source), block_size=32)
    quantizer.process()
    onnx.save(quantizer.model.model, target)


def float16_runtime(source: Path, target: Path, given: Sequence[Inputs]) -> None:
    """The runtime's conversion to float16, inputs and outputs left as they are."""
    from onnxruntime.transformers.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(source), keep_io_types=True), target)


def float16_converter(source: Path, target: Path, given: Sequence[Inputs]) -> None:
    """The conversion to float16 of onnxconverter-common, inputs and outputs left as they are."""
    from onnxconverter_common.float16 import convert_float_to_float16

    onnx.save(convert_float_to_float16(onnx.load(source), keep_io_types=True), target)


def onnxslim(source: Path, target: Path, given: Sequence[Inputs]) -> None:
    """`onnxslim MODEL RESULT`."""
    from benchmarks.peers import onnxslim as slim

    slim(source, target)


def onnxsim(source: Path, target: Path, given: Sequence[Inputs]) -> None:
    """`onnxsim MODEL RESULT`."""
    from benchmarks.peers import onnxsim as simplify

    simplify(source, target)


def onnxscript(source: Path, target: Path, given: Sequence[Inputs]) -> None:
    """`onnxscript.optimizer.optimize`."""
    import onnxscript.optimizer

    onnx.save(onnxscript.optimizer.optimize(onnx.load(source)), target)


def graphsurgeon(source: Path, target: Path, given: Sequence[Inputs]) -> None:
    """Into a graph of ONNX GraphSurgeon and out again."""
    import onnx_graphsurgeon as gs

    onnx.save(gs.export_onnx(gs.import_onnx(onnx.load(source)).cleanup().toposort()), target)


def version_converter(opset: int, source: Path, target: Path, given: Sequence[Inputs]) -> None:
    """`onnx.version_converter.convert_version` to a newer opset."""
    onnx.save(onnx.version_converter.convert_version(onnx.load(source), opset), target)


def merge_models(source: Path, target: Path, given: Sequence[Inputs]) -> None:
    """`onnx.compose.merge_models` with a model behind it, which passes an output on."""
    model = onnx.load(source)
    output = model.graph.output[0]
    end = onnx.ValueInfoProto()
    end.CopyFrom(output)
    tail = onnx.helper.make_model(
        onnx.helper.make_graph([onnx.helper.make_node("Identity", ["behind_in"], [output.name])], "tail", [], [end]),
        opset_imports=model.opset_import,
        ir_version=model.ir_version,
    )
    start = tail.graph.input.add()
    start.CopyFrom(output)
    start.name = "behind_in"
    tail = onnx.compose.add_prefix(tail, "tail/")
    merged = onnx.compose.merge_models(model, tail, io_map=[(output.name, "tail/behind_in")])
    onnx.save(onnx.compose.add_prefix(merged, "merged/"), target)


def extract_model(source: Path, target: Path, given: Sequence[Inputs]) -> None:
    """`onnx.utils.extract_model`, from all inputs to the first output."""
    graph = onnx.load(source).graph
    weights = {tensor.name for tensor in graph.initializer}
    inputs = [value.name for value in graph.input if value.name not in weights]
    onnx.utils.extract_model(source, target, inputs, [graph.output[0].name])


def external_data(source: Path, target: Path, given: Sequence[Inputs]) -> None:
    """Saved by `onnx` with the weights in a file beside it."""
    onnx.save(onnx.load(source), target, save_as_external_data=True, location=f"{target.name}.data")


def ort_format(source: Path, target: Path, given: Sequence[Inputs]) -> Path:
    """The runtime's own file format, as `python -m onnxruntime.tools.convert_onnx_models_to_ort` makes it."""
    import onnxruntime as ort

    options, written = ort.SessionOptions(), target.with_suffix(".ort")
    options.optimized_model_filepath = str(written)
    options.add_session_config_entry("session.save_model_format", "ORT")
    ort.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    return written


def openvino(source: Path, target: Path, given: Sequence[Inputs]) -> None:
    """`openvino.convert_model(MODEL)`, compiled for the CPU; the result is run by OpenVINO itself."""
    target.write_bytes(source.read_bytes())


TOOLS: Mapping[str, Tool] = {
    "onnx.checker, full": Tool(checker, "onnx"),
    "onnx.shape_inference, strict": Tool(shape_inference, "onnx"),
    "onnx.version_converter, opset 24": Tool(functools.partial(version_converter, 24), "onnx"),
    "onnx.compose.merge_models": Tool(merge_models, "onnx"),
    "onnx.utils.extract_model": Tool(extract_model, "onnx"),
    "onnx.save, external data": Tool(external_data, "onnx"),
    "symbolic_shape_infer": Tool(functools.partial(symbolic_shape_inference, False), "onnxruntime"),
    "symbolic_shape_infer --auto_merge": Tool(functools.partial(symbolic_shape_inference, True), "onnxruntime"),
    "quant_pre_process": Tool(quantize_preprocess, "onnxruntime"),
    "quantize_dynamic": Tool(quantize_dynamic, "onnxruntime", narrows=True),
    "quantize_static": Tool(quantize_static, "onnxruntime", narrows=True),
    "MatMulNBitsQuantizer": Tool(quantize_weights, "onnxruntime", narrows=True),
    "float16, onnxruntime.transformers": Tool(float16_runtime, "onnxruntime", narrows=True),
    "float16, onnxconverter_common": Tool(float16_converter, "onnxconverter_common", narrows=True),
    "ORT format": Tool(ort_format, "onnxruntime"),
    "onnxscript.optimizer": Tool(onnxscript, "onnxscript"),
    "graphsurgeon": Tool(graphsurgeon, "onnx_graphsurgeon"),
    "onnxslim": Tool(onnxslim, "onnxslim"),
    "onnxsim": Tool(onnxsim, "onnxsim"),
    "OpenVINO": Tool(openvino, "openvino"),
}
