"""What the declarations of several families share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from drawing import Input
from exporting import Case, Exporter
from torch import nn

VOCABULARY = 100
POSITIONS = 64

SDPA_AND_EAGER = ("sdpa", "eager")
TS_AND_DYNAMO: tuple[Exporter, ...] = ("ts", "dynamo")
TOKEN_SIZES = ({"batch": 2, "sequence": 9}, {"batch": 3, "sequence": 14})
IMAGE_SIZES = ({"batch": 2}, {"batch": 3})

IDS = Input(("batch", "sequence"), "tokens", high=VOCABULARY)
IDS_AND_MASK = {"input_ids": IDS, "attention_mask": Input(("batch", "sequence"), "mask")}


def image(size: int) -> Mapping[str, Input]:
    """A batch of square images of three channels."""
    return {"pixel_values": Input(("batch", 3, size, size), "normal")}


def with_raw(case: Case) -> Iterator[Case]:
    """The case with all three exporters for SDPA, and without ``raw`` for eager attention, to keep the suite small."""
    yield Case(case.name, case.build, case.inputs, case.sizes, ("sdpa",))
    yield Case(case.name, case.build, case.inputs, case.sizes, ("eager",), TS_AND_DYNAMO)


def text(
    name: str,
    build: Callable[..., nn.Module],
    *,
    attentions: tuple[str, ...] = ("sdpa",),
    exporters: tuple[Exporter, ...] = TS_AND_DYNAMO,
) -> Case:
    """A case whose inputs are token ids and their mask."""
    return Case(name, build, IDS_AND_MASK, TOKEN_SIZES, attentions, exporters)
