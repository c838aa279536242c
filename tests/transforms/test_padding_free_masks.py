"""Packed tokens: the forms of masks that say which tokens are visible, and masks that do not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from graphs import proto
from padded_encoders import ATTEND, CONSTANTS, EMBED, MASK, MASKS, encoder, feeds_of, is_packed, packed, reason, run

import ortfuse
from ortfuse.errors import VerificationError
from ortfuse.ir.hidden_tokens import HIDDEN_SCORE, HIDING_BIAS, hidden_tokens, note_hidden_tokens
from ortfuse.runtime.inputs.random_inputs import MASK_FILLER
from ortfuse.transforms.padding_free.element_ranges import ORDINARY

BIASES = {
    "where": "bias = Where(wide, none, low)",
    "subtraction": "f = Cast <to = 1> (wide)  g = Sub(unit, f)  bias = Mul(g, moderate)",
    "not": "hidden = Not(wide)  bias = Where(hidden, low, none)",
    "from numbers": "m4 = Unsqueeze(mask, ends)  e4 = Equal(m4, first)  bias = Where(e4, low, none)",
}


@pytest.mark.parametrize("bias", BIASES.values(), ids=BIASES)
@pytest.mark.parametrize("mask", [MASKS["right"], MASKS["left"]], ids=["right", "left"])
def test_masks_are_recognised_by_what_they_compute(bias: str, mask: Any) -> None:
    model = encoder(EMBED + MASK.replace("bias = Where(wide, none, low)", bias) + ATTEND)
    result = packed(model)
    assert is_packed(result), reason(result)
    feeds = feeds_of(mask)
    visible = feeds["mask"] != 0
    np.testing.assert_allclose(run(result.model, feeds)[0][visible], run(model, feeds)[0][visible], atol=1e-5)


def test_sizes_of_a_mask_with_other_names_are_asked_for() -> None:
    """As torch.onnx.export names the sequences of a mask that could be broadcast."""
    model = encoder(EMBED + MASK + ATTEND, "int64[b, s] ids, int64[c, s] mask")
    result = packed(model)
    assert not is_packed(result)
    assert "ids is [b, s] and mask [c, s]" in reason(result)
    assert "declare it with --same c=b" in reason(result)
    assert is_packed(packed(model, same={"c": "b"}))


def test_a_mask_that_the_model_computes_from_its_ids_is_found() -> None:
    model = encoder(
        EMBED + "pads = Equal(ids, pad)  shown = Not(pads)" + MASK.partition(")")[2] + ATTEND, "int64[b, s] ids"
    )
    result = packed(model, verify="whole")
    assert is_packed(result), reason(result)
    ids = np.array([[3, 4, 0, 0], [5, 6, 7, 0]])
    visible = ids != 0
    np.testing.assert_allclose(
        run(result.model, {"ids": ids})[0][visible], run(model, {"ids": ids})[0][visible], atol=1e-5
    )


def test_the_ids_of_tokens_are_no_mask_of_zeros_and_ones() -> None:
    """Only the word 1 is a key. Without any, all keys have weights, also those of the word 0."""
    text = (
        EMBED + "shown = Equal(ids, unit_id) wide = Unsqueeze(shown, ends) bias = Where(wide, none, moderate) " + ATTEND
    )
    constants = {**CONSTANTS, "unit_id": np.array(1)}
    model = proto(text, "int64[b, s] ids", "float[b, s, 16] y", constants=constants, opset=18)
    result, feeds = packed(model), {"ids": np.array([[5, 0, 0, 7, 0, 0], [1, 0, 3, 1, 0, 0]])}
    assert is_packed(result), reason(result)
    (known,) = hidden_tokens(ir.from_proto(result.model))
    assert known.mask == "shown"
    shown = feeds["ids"] == 1
    np.testing.assert_allclose(run(result.model, feeds)[0][shown], run(model, feeds)[0][shown], atol=1e-5)


def test_a_mask_that_another_tool_has_renamed_is_named() -> None:
    body = EMBED + "shown0 = Equal(ids, pad) shown = Not(shown0)" + MASK.partition(")")[2] + ATTEND
    model = encoder(body, "int64[b, s] ids")
    result = packed(model).model
    (known,) = hidden_tokens(made := ir.from_proto(result))
    note_hidden_tokens(made, replace(known, mask="renamed"))
    with pytest.raises(VerificationError, match="'renamed', the mask of its hidden tokens"):
        ortfuse.verify(model, made)


def test_a_mask_that_hides_keys_of_tokens_whose_outputs_are_wanted_is_none() -> None:
    body = MASK.replace(
        "shown = Cast <to = 9> (mask)",
        "kept = Cast <to = 9> (mask)  is = Equal(ids, pad)  other = Not(is)  shown = And(kept, other)",
    )
    result = packed(encoder(EMBED + body + ATTEND))
    assert not is_packed(result)
    assert "each visible token sees a visible one" in reason(result)
    turned = "turned = Slice(mask, far, near, zero, far)  shown = Cast <to = 9> (turned)"
    extra = {**CONSTANTS, "far": np.array([-1], np.int64), "near": np.array([-(1 << 40)], np.int64)}
    model = proto(
        EMBED + MASK.replace("shown = Cast <to = 9> (mask)", turned) + ATTEND,
        "int64[b, s] ids, int64[b, s] mask", "float[b, s, 16] y", constants=extra, opset=18,
    )  # fmt: skip
    assert not is_packed(packed(model))


def ones(mask: np.ndarray, dtype: Any) -> np.ndarray:
    return mask.astype(dtype)


def zeros(mask: np.ndarray, dtype: Any) -> np.ndarray:
    return (mask == 0).astype(dtype)


def low(mask: np.ndarray, dtype: Any) -> np.ndarray:
    return np.where(mask != 0, 0, -np.inf).astype(dtype)


def lowest(mask: np.ndarray, dtype: Any) -> np.ndarray:
    return np.where(mask != 0, 0, -10000).astype(dtype)


PRODUCT = "g = Sub(unit, wide)  bias = Mul(g, moderate) "

FORMS: dict[str, tuple[str, str, Any, tuple[int, ...]]] = {
    "bool": ("bool[b, s]", "wide = Unsqueeze(mask, ends)  bias = Where(wide, none, low) ", ones, ()),
    "int32": ("int32[b, s]", MASK, ones, ()),
    "float": ("float[b, s]", "wide = Unsqueeze(mask, ends) " + PRODUCT, ones, ()),
    "bool that hides": ("bool[b, s]", "wide = Unsqueeze(mask, ends)  bias = Where(wide, low, none) ", zeros, ()),
    "float that hides": ("float[b, s]", "wide = Unsqueeze(mask, ends)  bias = Mul(wide, moderate) ", zeros, ()),
    "added": ("float[b, s]", "bias = Unsqueeze(mask, ends) ", low, ()),
    "added of rank 4": ("float[b, 1, 1, s]", "bias = Identity(mask) ", lowest, (1, 2)),
    "added in float16": ("float16[b, 1, 1, s]", "bias = Cast <to = 1> (mask) ", low, (1, 2)),
    "bool of rank 4": ("bool[b, 1, 1, s]", "bias = Where(mask, none, low) ", ones, (1, 2)),
    "int64 of rank 4": ("int64[b, 1, 1, s]", "wide = Cast <to = 1> (mask) " + PRODUCT, ones, (1, 2)),
    "bool of rank 3": ("bool[b, 1, s]", "wide = Unsqueeze(mask, one)  bias = Where(wide, none, low) ", ones, (1,)),
}

DTYPES = {"bool": np.bool_, "int32": np.int32, "int64": np.int64, "float": np.float32, "float16": np.float16}


@pytest.mark.parametrize("form", FORMS)
def test_masks_of_any_type_and_of_rank_up_to_4_are_found(form: str) -> None:
    kind, body, numbers, axes = FORMS[form]
    embed = EMBED.replace("Gather(table, ids)", "Identity(ids)")
    model = encoder(embed + body + ATTEND, f"float[b, s, 16] ids, {kind} mask")
    result = packed(model, verify="whole")
    assert is_packed(result), reason(result)
    assert result.verdict is not None
    assert any("left-padded, anything" in trial.inputs for trial in result.verdict.trials)
    for visible in map(np.array, MASKS.values()):
        if not visible.any(1).all():
            continue
        mask = np.expand_dims(numbers(visible, DTYPES[kind.partition("[")[0]]), axes)
        embedded = np.random.default_rng(2).standard_normal((*visible.shape, 16)).astype(np.float32)
        poisoned = np.where(visible[..., None] != 0, embedded, np.float32("nan"))
        wanted = run(model, {"ids": embedded, "mask": mask})[0]
        found = run(result.model, {"ids": poisoned, "mask": mask})[0]
        np.testing.assert_allclose(found[visible != 0], wanted[visible != 0], atol=1e-5)


@pytest.mark.parametrize("kind", ["bool[b, 1, s, s]", "float[b, 1, s, s]"])
def test_masks_of_queries_do_not_say_what_is_padding(kind: str) -> None:
    body = "bias = Where(mask, none, low) " if kind.startswith("bool") else "bias = Identity(mask) "
    result = packed(encoder(EMBED + body + ATTEND, f"int64[b, s] ids, {kind} mask"))
    assert not is_packed(result)
    assert "mask is [b, 1, s, s], and may hide other keys from each query" in reason(result)


def test_a_mask_that_the_model_computes_from_lengths_is_found() -> None:
    body = """ns = Squeeze(n)  l = Unsqueeze(lengths, one)  steps = Range(first, ns, unit_int)  shown = Less(steps, l)
        wide = Unsqueeze(shown, ends)  bias = Where(wide, none, low) """
    constants = {**CONSTANTS, "unit_int": np.array(1)}
    inputs = "int64[b, s] ids, int64[b] lengths"
    model = proto(EMBED + body + ATTEND, inputs, "float[b, s, 16] y", constants=constants, opset=18)
    result = packed(model, verify="whole")
    assert is_packed(result), reason(result)
    lengths, ids = np.array([3, 6, 1]), np.random.default_rng(1).integers(3, 40, (3, 6))
    visible = np.arange(6) < lengths[:, None]
    feeds = {"ids": ids, "lengths": lengths}
    np.testing.assert_allclose(run(result.model, feeds)[0][visible], run(model, feeds)[0][visible], atol=1e-5)


def test_the_numbers_that_hide_agree() -> None:
    """Masks that are drawn hide by the contract, and by it no ordinary score shows a hidden key."""
    assert MASK_FILLER <= HIDING_BIAS
    assert np.float16(MASK_FILLER) == MASK_FILLER
    assert HIDING_BIAS + ORDINARY.high <= HIDDEN_SCORE
    # the weight of a hidden key next to the lowest ordinary score
    assert np.exp(np.float64(HIDDEN_SCORE - ORDINARY.low)) == 0


def two_streams() -> Any:
    """A model of two encoders that have nothing in common, each with a mask of its own."""
    made = []
    for name in ("a", "b"):
        batch = f"{name}b, {name}s"
        alone = encoder(inputs=f"int64[{batch}] ids, int64[{batch}] mask", outputs=f"float[{batch}, 16] y")
        made.append(onnx.compose.add_prefix(alone, f"{name}_"))
    return onnx.compose.merge_models(*made, io_map=[])


def test_a_second_run_notes_its_mask_beside_that_of_the_first() -> None:
    model = two_streams()
    once = packed(model, verify="whole")
    twice = packed(once.model, verify="whole")
    notes = [hidden_tokens(ir.from_proto(result.model)) for result in (once, twice)]
    assert [[note.mask for note in found] for found in notes] == [["a_mask"], ["a_mask", "b_mask"]]
    assert [dict(note.outputs) for note in notes[1]] == [{"a_y": ((0, 1),)}, {"b_y": ((0, 1),)}]
    for original in (model, once.model):
        assert ortfuse.verify(original, twice.model).ok
    other = two_streams()
    weight = next(one for one in other.graph.initializer if one.name == "a_wv")
    weight.CopyFrom(onnx.numpy_helper.from_array(onnx.numpy_helper.to_array(weight) * np.float32(1.5), "a_wv"))
    assert not ortfuse.verify(other, twice.model).ok


def test_a_model_that_was_packed_keeps_what_is_noted_when_it_is_optimised_again() -> None:
    model = encoder(
        EMBED + "pads = Equal(ids, pad)  shown = Not(pads)" + MASK.partition(")")[2] + ATTEND, "int64[b, s] ids"
    )
    once = packed(model).model
    for options in ({}, {"padding_free": True}):
        again = ortfuse.optimize(once, verify="whole", **options).model
        assert hidden_tokens(ir.from_proto(again)) == hidden_tokens(ir.from_proto(once))
        assert ortfuse.verify(model, again).ok
