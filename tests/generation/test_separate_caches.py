"""Decoders whose caches are stacked, joined, flattened, cut or transposed: each attention gets caches of its own."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import onnx
import pytest
from edited_decoders import is_right_in_one_batch
from stacked_decoders import GROUPS, HEADS, LAYERS, LAYOUTS, SIZE, Layout, write_stacked

import ortfuse
from ortfuse.errors import GenerationError


@pytest.mark.parametrize("name", LAYOUTS)
def test_layouts(name: str, tmp_path: Path) -> None:
    write_stacked(tmp_path / "m.onnx", LAYOUTS[name])
    done = ortfuse.generator(tmp_path / "m.onnx", tmp_path / "out", max_length=60, verify=True)
    assert not done.kept
    assert done.interface.mixed_lengths
    assert [cache.past for cache in done.interface.caches] == [
        f"past_key_values.{layer}.{kind}" for layer in range(LAYERS) for kind in ("key", "value")
    ]
    assert {cache.shape for cache in done.interface.caches} == {(-1, GROUPS, 60, SIZE)}
    nodes = [node for node in done.model.graph if node.op_type == "GroupQueryAttention"]
    assert {(node.attributes["num_heads"].value, node.attributes["kv_num_heads"].value) for node in nodes} == {
        (HEADS, GROUPS)
    }
    assert {node.op_type for node in done.model.graph if node.op_type in ("Split", "Concat", "Unsqueeze", "Pad")} <= {
        "Unsqueeze"
    }
    is_right_in_one_batch(tmp_path, done)


SPLIT, CUT = LAYOUTS["one tensor, by Split"], LAYOUTS["one tensor, cut to a window"]
ORDER = "(uk_0, uv_0, uk_1, uv_1)"


def changed(layout: Layout, *edits: tuple[str, str], outputs: str = "") -> Layout:
    """A layout that hands out something else."""
    store = layout.store
    for old, new in edits:
        assert old in store, old
        store = store.replace(old, new)
    return dataclasses.replace(layout, store=store, outputs=layout.outputs + outputs)


@pytest.mark.parametrize(
    ("layout", "why"),
    [
        (changed(SPLIT, (ORDER, "(uk_1, uv_1, uk_0, uv_0)")), "present has elements of the input past, but"),
        (changed(SPLIT, (ORDER, "(uk_0, uv_1, uk_1, uv_0)")), "past: what is handed out is not what it attends to"),
        (changed(SPLIT, ("uv_1 = Unsqueeze(v_1, ", "n_1 = Neg(v_1)\n  uv_1 = Unsqueeze(n_1, ")), "not what it attends to"),
        (
            changed(SPLIT, ("  present =", "  mean = ReduceMean<keepdims = 0>(past)\n  present ="), outputs=", float mean"),
            "past: it is read by something else, too",
        ),
        (changed(CUT, ("[-6]", "[0]"), ("[9223372036854775807]", "[6]")), "present has elements of the input past, but"),
        (changed(CUT, ("[-6]", "[-5]")), "other keys are visible than the 6 last ones"),
    ],
    ids=["other layers", "other values", "negated", "read twice", "first tokens", "too few"],
)  # fmt: skip
def test_what_is_no_cache_is_left(layout: Layout, why: str, tmp_path: Path) -> None:
    write_stacked(tmp_path / "m.onnx", layout)
    with pytest.raises(GenerationError, match=why):
        ortfuse.generator(tmp_path / "m.onnx", tmp_path / "out", max_length=60, verify=True)


@pytest.mark.parametrize("name", ["one tensor, by Split", "one tensor, cut to a window"])
def test_float16(name: str, tmp_path: Path) -> None:
    """Attention of float16 is computed in float32."""
    write_stacked(tmp_path / "single.onnx", LAYOUTS[name])
    ortfuse.convert(tmp_path / "single.onnx", to="float16", output=tmp_path / "m.onnx")
    done = ortfuse.generator(tmp_path / "m.onnx", tmp_path / "out", max_length=60, verify=True)
    assert not done.kept
    assert {cache.dtype for cache in done.interface.caches} == {"float16"}
    assert done.comparison is not None
    assert done.comparison.equal, done.comparison.first


def test_rows_that_are_told(tmp_path: Path) -> None:
    """How many sequences there are cannot be seen in a cache of which each row is one head, where a size is -1."""
    layout = LAYOUTS["heads and batch in one axis, apart before something is appended"]
    load = layout.load.replace("ps_0, sixteen)", "minus, sixteen)")
    load = load.replace("ps_1, sixteen)", "minus, sixteen)").replace("<allowzero = 1>", "")
    load = load.replace("\n  sixteen =", "\n  minus = Constant<value_ints = [-1]>()\n  sixteen =", 1)
    load = load.replace("sixteen, ps_0)", "sixteen, minus)").replace("sixteen, ps_1)", "sixteen, minus)")
    write_stacked(tmp_path / "m.onnx", dataclasses.replace(layout, load=load))
    with pytest.raises(GenerationError, match="has elements of the input past_k0"):
        ortfuse.generator(tmp_path / "m.onnx", max_length=60)
    done = ortfuse.generator(
        tmp_path / "m.onnx", tmp_path / "out", max_length=60, verify=True, same={"rows": "2*batch"}
    )
    assert not done.kept
    is_right_in_one_batch(tmp_path, done)


RANGE = """
  length = Shape<start = 3, end = 4>(whole)
  six = Constant<value_ints = [6]>()
  least = Min(length, six)
  start = Sub(length, least)
  from = Squeeze(start)
  to = Squeeze(length)
  range = Range(from, to, one)
  present = Gather<axis = 3>(whole, range)"""


@pytest.mark.parametrize("kept", [6, 9])
def test_what_is_cut_in_another_way(kept: int, tmp_path: Path) -> None:
    """More tokens may be kept than the window has."""
    lines = CUT.store[: CUT.store.index("  before =")].rstrip() + RANGE.replace("[6]", f"[{kept}]")
    write_stacked(tmp_path / "m.onnx", dataclasses.replace(CUT, store=lines))
    done = ortfuse.generator(tmp_path / "m.onnx", tmp_path / "out", max_length=60, verify=True)
    assert not done.kept
    assert {
        node.attributes["local_window_size"].value for node in done.model.graph if node.op_type.startswith("Group")
    } == {7}
    is_right_in_one_batch(tmp_path, done)


def test_a_mask_that_is_cut_with_the_caches(tmp_path: Path) -> None:
    """A mask of as many columns as there are keys, of which the generator has one for all tokens."""
    layout = dataclasses.replace(
        CUT,
        inputs=CUT.inputs + ", int64[batch, columns] shown",
        seen=CUT.seen.replace("  seen =", "  close =") + """
  is_shown = Cast<to = 9>(shown)
  by_key = Unsqueeze(is_shown, first_two_axes)
  seen = And(close, by_key)""".replace("first_two_axes", "middle"),
        load=CUT.load + "\n  middle = Constant<value_ints = [1, 2]>()",
    )  # fmt: skip
    model = onnx.load(write_stacked(tmp_path / "m.onnx", layout))
    model.graph.input[-1].type.tensor_type.shape.dim[1].dim_param = "past + sequence"
    onnx.save(model, tmp_path / "m.onnx")
    done = ortfuse.generator(tmp_path / "m.onnx", tmp_path / "out", max_length=60, verify=True)
    assert done.decoder.mask_kept == 6
    assert not done.kept
    is_right_in_one_batch(tmp_path, done)
