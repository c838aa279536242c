"""Networks around operators of images: suppression of overlapping boxes, samples of features, losses."""

from __future__ import annotations

from typing import Any

import torch
from drawing import Input
from exporting import Case
from onnxscript import opset18
from torch import Tensor, nn
from torch.nn import functional as f
from torch.onnx import register_custom_op_symbolic

from cases.common import IMAGE_SIZES, TS_AND_DYNAMO, image

MOST, OVERLAP, LEAST = 4, 0.4, 0.3


def _overlaps(one: Tensor, other: Tensor) -> bool:
    """Whether two boxes by their corners have more than `OVERLAP` of what they cover in common."""
    corner, opposite = torch.maximum(one[:2], other[:2]), torch.minimum(one[2:], other[2:])
    common = (opposite - corner).clamp(min=0).prod()
    return bool(common / ((one[2:] - one[:2]).prod() + (other[2:] - other[:2]).prod() - common) > OVERLAP)


@torch.library.custom_op("golden::suppressed", mutates_args=())
def suppressed(boxes: Tensor, scores: Tensor) -> Tensor:
    """NonMaxSuppression of ONNX: rows of image, class and box, of boxes [b, n, 4] with scores [b, classes, n]."""
    rows = []
    for picture, classes in enumerate(scores):
        for label, numbers in enumerate(classes):
            found: list[int] = []
            for box in numbers.argsort(descending=True, stable=True).tolist():
                rivals = (_overlaps(boxes[picture, box], boxes[picture, other]) for other in found)
                if len(found) < MOST and numbers[box] > LEAST and not any(rivals):
                    found.append(box)
            rows += [[picture, label, box] for box in found]
    return torch.tensor(rows, dtype=torch.int64).reshape(-1, 3)


@suppressed.register_fake
def _(boxes: Tensor, scores: Tensor) -> Tensor:
    return boxes.new_empty((torch.library.get_ctx().new_dynamic_size(), 3), dtype=torch.int64)


def _of_script(g: Any, boxes: Any, scores: Any) -> Any:
    numbers = [torch.tensor([MOST]), torch.tensor([OVERLAP]), torch.tensor([LEAST])]
    return g.op("NonMaxSuppression", boxes, scores, *(g.op("Constant", value_t=number) for number in numbers))


def _of_dynamo(boxes: Any, scores: Any) -> Any:
    return opset18.NonMaxSuppression(boxes, scores, MOST, OVERLAP, LEAST)


register_custom_op_symbolic("golden::suppressed", _of_script, 11)


class Detector(nn.Module):
    """Every cell of a grid predicts a box, that there is something, and of which class: YOLO, arXiv:1506.02640."""

    def __init__(self, classes: int = 3) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(3, 8, 3, 2, 1),
            nn.SiLU(),
            nn.Conv2d(8, 16, 3, 2, 1),
            nn.SiLU(),
            nn.Conv2d(16, 16, 3, 2, 1),
            nn.SiLU(),
        )
        self.head = nn.Conv2d(16, 5 + classes, 1)

    def forward(self, pixel_values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        found = self.head(self.body(pixel_values)).flatten(2).transpose(1, 2).sigmoid()
        centres, sizes = found[..., :2], found[..., 2:4] * 0.5
        corners = torch.cat((centres - sizes / 2, centres + sizes / 2), -1)
        scores = (found[..., 4:5] * found[..., 5:]).transpose(1, 2)
        return suppressed(corners, scores), torch.cat((centres, sizes), -1), scores


class Sampler(nn.Module):
    """Segmentation that reads its features where a predicted affine map points to: arXiv:1506.02025; enlarged twofold."""

    def __init__(self, classes: int = 4) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1), nn.ReLU(), nn.Conv2d(8, 8, 3, 1, 1), nn.ReLU())
        self.map = nn.Linear(8, 6)
        self.classes = nn.Conv2d(8, classes, 1)

    def forward(self, pixel_values: Tensor) -> Tensor:
        features = self.features(pixel_values)
        theta = self.map(features.mean((2, 3))).view(-1, 2, 3)
        rows = torch.linspace(-1, 1, features.shape[2])
        columns = torch.linspace(-1, 1, features.shape[3])
        grid = torch.stack((*torch.meshgrid(columns, rows, indexing="xy"), torch.ones(len(rows), len(columns))), -1)
        places = (grid.view(-1, 3) @ theta.transpose(1, 2)).view(-1, len(rows), len(columns), 2)
        return f.interpolate(self.classes(f.grid_sample(features, places, align_corners=False)), scale_factor=2.0)


class Loss(nn.Module):
    """A classifier of tokens with its loss, labels of 0 ignored, classes weighted."""

    def __init__(self, classes: int = 6) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.classifier = nn.Linear(8, classes)
        self.weight = nn.Parameter(torch.ones(classes))

    def forward(self, input_ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.classifier(self.embedding(input_ids))
        weighted = f.cross_entropy(scores.transpose(1, 2), labels, self.weight, ignore_index=0)
        return weighted, f.nll_loss(f.log_softmax(scores, -1).flatten(0, 1), labels.flatten(), ignore_index=-100)


LABELS = {name: Input(("batch", "sequence"), "tokens", high=high) for name, high in (("input_ids", 20), ("labels", 6))}
TOKENS = ({"batch": 2, "sequence": 5}, {"batch": 3, "sequence": 7})

CASES = (
    Case(
        "suppression",
        Detector,
        image(32),
        IMAGE_SIZES,
        exporters=TS_AND_DYNAMO,
        translations={torch.ops.golden.suppressed.default: _of_dynamo},
    ),
    Case("sampler", Sampler, image(32), IMAGE_SIZES, exporters=TS_AND_DYNAMO),
    Case("loss", Loss, LABELS, TOKENS, exporters=TS_AND_DYNAMO),
)
