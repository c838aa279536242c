"""Functions of tensors in the styles that people write: reshapes, masks, positions, boxes, pictures, packed tokens."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.exports.varied_declare import BATCH, BATCH_LENGTH, Family, bools, constant, integers, normal, positive

family = Family()
RECIPES = family.recipes
ALL = {"x": BATCH_LENGTH}


@family.function({"x": normal(2, 16, 8, 8)})
def space_to_depth_reshape(x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    x = x.view(b, c, h // 2, 2, w // 2, 2).permute(0, 3, 5, 1, 2, 4)
    return x.reshape(b, c * 4, h // 2, w // 2)


@family.function({"x": normal(2, 16, 8, 8)})
def depth_to_space_sliced(x: Tensor) -> Tensor:
    b, c, h, w = x.shape
    rows = torch.stack([x[:, 0::4], x[:, 1::4]], dim=-1).flatten(3)
    more = torch.stack([x[:, 2::4], x[:, 3::4]], dim=-1).flatten(3)
    return torch.stack([rows, more], dim=3).reshape(b, c // 4, h * 2, w * 2)


@family.function({"x": normal(2, 3, 16, 16)}, {"x": {0: "batch"}})
def patches_unfold(x: Tensor) -> Tensor:
    return x.unfold(2, 4, 4).unfold(3, 4, 4).permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)


@family.function({"x": normal(2, 8, 8, 12)})
def windows_and_back(x: Tensor) -> Tensor:
    b, h, w, c = x.shape
    windows = x.view(b, h // 4, 4, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)
    attended = torch.softmax(windows @ windows.transpose(1, 2) / math.sqrt(c), -1) @ windows
    back = attended.view(b, h // 4, w // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5)
    return back.reshape(b, h, w, c)


@family.function({"x": normal(2, 8, 8, 12)})
def shifted_windows(x: Tensor) -> Tensor:
    b, h, w, c = x.shape
    rolled = torch.roll(x, shifts=(-2, -2), dims=(1, 2))
    region = torch.zeros(1, h, w, 1)
    count = 0
    for rows in (slice(0, -4), slice(-4, -2), slice(-2, None)):
        for columns in (slice(0, -4), slice(-4, -2), slice(-2, None)):
            region[:, rows, columns] = count
            count += 1
    ids = region.view(1, h // 4, 4, w // 4, 4, 1).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16)
    mask = (ids.unsqueeze(1) - ids.unsqueeze(2)).masked_fill(ids.unsqueeze(1) != ids.unsqueeze(2), -100.0)
    windows = rolled.view(b, h // 4, 4, w // 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(-1, 16, c)
    scores = windows @ windows.transpose(1, 2)
    scores = (scores.view(b, -1, 16, 16) + mask).view(-1, 16, 16)
    out = (scores.softmax(-1) @ windows).view(b, h // 4, w // 4, 4, 4, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
    return torch.roll(out, shifts=(2, 2), dims=(1, 2))


@family.function({"lengths": integers(9, 3, low=1), "x": normal(3, 9, 4)}, {"lengths": BATCH, "x": BATCH_LENGTH})
def masked_mean(lengths: Tensor, x: Tensor) -> Tensor:
    mask = torch.arange(x.shape[1]).unsqueeze(0) < lengths.unsqueeze(1)
    kept = mask.unsqueeze(-1).to(x.dtype)
    return (x * kept).sum(1) / kept.sum(1).clamp(min=1e-6)


@family.function({"mask": integers(2, 2, 9)}, {"mask": BATCH_LENGTH})
def extended_mask(mask: Tensor) -> Tensor:
    extended = mask[:, None, None, :].to(torch.float32)
    return (1.0 - extended) * torch.finfo(torch.float32).min


@family.function({"mask": integers(2, 2, 9)}, {"mask": BATCH_LENGTH})
def causal_and_padding(mask: Tensor) -> Tensor:
    size = mask.shape[1]
    causal = torch.tril(torch.ones(size, size, dtype=torch.bool))
    both = causal[None, None] & mask[:, None, None, :].bool()
    return torch.where(both, 0.0, float("-inf")).clamp(min=-1e4)


@family.function({"mask": integers(2, 2, 9)}, {"mask": BATCH_LENGTH})
def position_ids(mask: Tensor) -> Tensor:
    positions = mask.long().cumsum(-1) - 1
    return positions.masked_fill(mask == 0, 1)


@family.function({"x": normal(2, 7, 4)}, ALL)
def sliding_window_mask(x: Tensor) -> Tensor:
    length = x.shape[1]
    row, column = torch.arange(length)[:, None], torch.arange(length)[None, :]
    allowed = (column <= row) & (column > row - 3)
    scores = (x @ x.transpose(1, 2)).masked_fill(~allowed, -1e9)
    return scores.softmax(-1) @ x


@family.function({"x": normal(2, 6, 8)}, ALL)
def sinusoidal(x: Tensor) -> Tensor:
    position = torch.arange(x.shape[1], dtype=torch.float32).unsqueeze(1)
    scale = torch.exp(torch.arange(0, 8, 2).float() * (-math.log(10000.0) / 8))
    table = torch.stack([torch.sin(position * scale), torch.cos(position * scale)], dim=-1).flatten(1)
    return x * math.sqrt(8) + table.unsqueeze(0)


@family.function({"t": positive(3)})
def timestep_embedding(t: Tensor) -> Tensor:
    frequencies = torch.exp(-math.log(10000) * torch.arange(8, dtype=torch.float32) / 8)
    angles = t[:, None].float() * 1000 * frequencies[None]
    embedding = torch.cat([torch.cos(angles), torch.sin(angles)], dim=-1)
    return functional.pad(embedding, (0, 1))


@family.function({"x": normal(2, 4, 6, 8)}, {"x": {0: "batch", 2: "length"}})
def rotary_half(x: Tensor) -> Tensor:
    inverse = 1.0 / (10000 ** (torch.arange(0, 8, 2).float() / 8))
    angles = torch.outer(torch.arange(x.shape[2]).float(), inverse)
    cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-second, first], dim=-1) * sin


@family.function({"x": normal(2, 6, 4, 8)}, {"x": {0: "batch", 1: "length"}})
def rotary_interleaved(x: Tensor) -> Tensor:
    inverse = 1.0 / (10000 ** (torch.arange(0, 8, 2).float() / 8))
    angles = torch.einsum("i,j->ij", torch.arange(x.shape[1]).float(), inverse)[:, None]
    pairs = x.reshape(*x.shape[:-1], 4, 2)
    real, imaginary = pairs[..., 0], pairs[..., 1]
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([real * cos - imaginary * sin, real * sin + imaginary * cos], dim=-1).flatten(3)


@family.function({"x": normal(2, 4, 5, 5)}, {"x": {0: "batch", 2: "h", 3: "w"}})
def grid_of_positions(x: Tensor) -> Tensor:
    h, w = x.shape[2:]
    ys, xs = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    grid = torch.stack([xs / (w - 1) * 2 - 1, ys / (h - 1) * 2 - 1]).float()
    return torch.cat([x, grid[None].expand(x.shape[0], -1, -1, -1)], dim=1)


@family.function({"table": normal(15, 4), "x": normal(2, 4, 8, 8)}, {"x": BATCH})
def relative_position_table(table: Tensor, x: Tensor) -> Tensor:
    positions = torch.arange(8)
    relative = positions[:, None] - positions[None, :] + 7
    return x + table[relative.view(-1)].view(8, 8, 4).permute(2, 0, 1).unsqueeze(0)


@family.function({"x": normal(2, 4, 6, 11)}, {"x": BATCH})
def relative_shift(x: Tensor) -> Tensor:
    b, h, q, k = x.shape
    padded = torch.cat([x.new_zeros(b, h, q, 1), x], dim=-1).view(b, h, k + 1, q)
    return padded[:, :, 1:].view(b, h, q, k)[..., : k // 2 + 1]


@family.function({"x": normal(2, 7, 7)}, {"x": BATCH_LENGTH})
def t5_buckets(x: Tensor) -> Tensor:
    relative = torch.arange(x.shape[1])[None] - torch.arange(x.shape[1])[:, None]
    sign = (relative > 0).long() * 8
    distance = relative.abs()
    large = 4 + (torch.log(distance.float().clamp(min=1) / 4) / math.log(16 / 4) * 4).long()
    return sign + torch.where(distance < 4, distance, torch.min(large, torch.full_like(large, 7)))


@family.function({"x": normal(2, 4, 6, 6)}, {"x": {0: "batch", 2: "length", 3: "length"}})
def alibi(x: Tensor) -> Tensor:
    slopes = torch.tensor([2.0 ** (-8 * (head + 1) / 4) for head in range(4)])
    distance = torch.arange(x.shape[-1])[None, :] - torch.arange(x.shape[-2])[:, None]
    return (x + slopes[:, None, None] * distance.abs().neg()).softmax(-1)


@family.function({"scores": normal(2, 4, 20), "past": normal(2, 4)}, {"scores": BATCH, "past": BATCH})
def beam_step(scores: Tensor, past: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    total = scores.log_softmax(-1) + past.unsqueeze(-1)
    best, flat = total.view(total.shape[0], -1).topk(4, dim=-1)
    return best, torch.div(flat, 20, rounding_mode="floor"), flat % 20


@family.function({"logits": normal(2, 20)})
def top_p_filter(logits: Tensor) -> Tensor:
    ordered, indices = torch.sort(logits, descending=True)
    remove = ordered.softmax(-1).cumsum(-1) > 0.9
    remove = torch.cat([torch.zeros_like(remove[..., :1]), remove[..., :-1]], dim=-1)
    return logits.masked_fill(remove.scatter(1, indices, remove), -1e9)


@family.function({"logits": normal(2, 20), "ids": integers(20, 2, 6)}, {"logits": BATCH, "ids": BATCH_LENGTH})
def repetition_penalty(logits: Tensor, ids: Tensor) -> Tensor:
    score = torch.gather(logits, 1, ids)
    score = torch.where(score < 0, score * 1.3, score / 1.3)
    return logits.scatter(1, ids, score)


@family.function({"logits": normal(2, 20)})
def top_k_filter(logits: Tensor) -> Tensor:
    threshold = torch.topk(logits / 0.7, 5)[0][..., -1, None]
    return torch.where(logits / 0.7 < threshold, torch.tensor(-1e9), logits / 0.7).softmax(-1)


@family.function({"boxes": normal(2, 10, 4)}, {"boxes": BATCH_LENGTH})
def box_corners(boxes: Tensor) -> Tensor:
    cx, cy, w, h = boxes.unbind(-1)
    return torch.stack([cx - 0.5 * w, cy - 0.5 * h, cx + 0.5 * w, cy + 0.5 * h], dim=-1)


@family.function({"a": positive(5, 4), "b": positive(7, 4)}, {"a": {0: "n"}, "b": {0: "m"}})
def box_iou(a: Tensor, b: Tensor) -> Tensor:
    area_a = (a[:, 2] - a[:, 0]) * (a[:, 3] - a[:, 1])
    area_b = (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1])
    size = (torch.min(a[:, None, 2:], b[:, 2:]) - torch.max(a[:, None, :2], b[:, :2])).clamp(min=0)
    inter = size[..., 0] * size[..., 1]
    return inter / (area_a[:, None] + area_b - inter + 1e-7)


@family.function({"deltas": normal(2, 9, 4), "anchors": positive(9, 4)}, {"deltas": BATCH})
def decode_anchors(deltas: Tensor, anchors: Tensor) -> Tensor:
    size = anchors[:, 2:] - anchors[:, :2]
    centre = anchors[:, :2] + 0.5 * size
    moved = deltas[..., :2] * 0.1 * size + centre
    grown = torch.exp(torch.clamp(deltas[..., 2:] * 0.2, max=4.135)) * size
    return torch.cat([moved - 0.5 * grown, moved + 0.5 * grown], dim=-1).clamp(0, 1)


@family.function({"x": normal(2, 27, 4, 4)})
def yolo_head_grid(x: Tensor) -> Tensor:
    b, _, h, w = x.shape
    x = x.view(b, 3, 9, h, w).permute(0, 1, 3, 4, 2).sigmoid()
    ys, xs = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    grid = torch.stack((xs, ys), 2).view(1, 1, h, w, 2).float()
    anchors = torch.tensor([[10.0, 13.0], [16.0, 30.0], [33.0, 23.0]]).view(1, 3, 1, 1, 2)
    xy = (x[..., 0:2] * 2 - 0.5 + grid) * 8
    wh = (x[..., 2:4] * 2) ** 2 * anchors
    return torch.cat((xy, wh, x[..., 4:]), -1).view(b, -1, 9)


@family.function({"x": normal(2, 64, 10)})
def distribution_focal(x: Tensor) -> Tensor:
    b, _, n = x.shape
    weights = x.view(b, 4, 16, n).transpose(2, 1).softmax(1)
    return (weights * torch.arange(16, dtype=torch.float32).view(1, 16, 1, 1)).sum(1)


@family.function({"heat": positive(2, 3, 8, 8)})
def heatmap_peaks(heat: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    peak = functional.max_pool2d(heat, 3, stride=1, padding=1)
    kept = heat * (peak == heat).float()
    scores, flat = kept.flatten(1).topk(5)
    return scores, (flat % 64) // 8, flat % 8


@family.function({"scores": positive(2, 30, 5), "boxes": normal(2, 30, 4)}, {"scores": BATCH, "boxes": BATCH})
def select_best_boxes(scores: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    best, label = scores.max(-1)
    top, index = best.topk(8, dim=1)
    chosen = boxes.gather(1, index.unsqueeze(-1).expand(-1, -1, 4))
    return top, label.gather(1, index), chosen


@family.function({"x": integers(256, 2, 12, 10, 3, dtype=torch.uint8)}, {"x": {0: "batch", 1: "h", 2: "w"}})
def picture_preprocess(x: Tensor) -> Tensor:
    x = x.permute(0, 3, 1, 2).float() / 255.0
    x = functional.interpolate(x, size=(16, 16), mode="bilinear", align_corners=False)
    mean, std = (
        torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1),
        torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1),
    )
    return (x - mean) / std


@family.function({"x": integers(256, 12, 10, 3, dtype=torch.uint8)}, {"x": {0: "h", 1: "w"}})
def letterbox(x: Tensor) -> Tensor:
    x = x[..., [2, 1, 0]].permute(2, 0, 1).unsqueeze(0).to(torch.float32) * (1 / 255)
    x = functional.interpolate(x, scale_factor=0.5, mode="nearest")
    return functional.pad(x, (1, 2, 3, 1), value=0.447)


@family.function({"x": positive(2, 3, 8, 8)}, {"x": {0: "batch", 2: "h", 3: "w"}})
def to_grey_and_edges(x: Tensor) -> Tensor:
    grey = (x * torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)).sum(1, keepdim=True)
    kernel = torch.tensor([[[[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]]])
    gx, gy = functional.conv2d(grey, kernel, padding=1), functional.conv2d(grey, kernel.transpose(2, 3), padding=1)
    return torch.sqrt(gx**2 + gy**2 + 1e-6)


@family.function({"x": positive(2, 3, 9, 9)})
def crop_flip_normalise(x: Tensor) -> Tensor:
    top = (x.shape[2] - 6) // 2
    x = x[:, :, top : top + 6, top : top + 6].flip(-1)
    return (x - x.mean((2, 3), keepdim=True)) / (x.std((2, 3), keepdim=True) + 1e-5)


@family.function({"x": normal(3, 6, 4), "lengths": constant([6, 3, 5])}, {"x": BATCH_LENGTH, "lengths": BATCH})
def last_token(x: Tensor, lengths: Tensor) -> Tensor:
    return x[torch.arange(x.shape[0]), lengths - 1]


@family.function({"x": normal(3, 6, 4), "mask": bools(3, 6)}, {"x": BATCH_LENGTH, "mask": BATCH_LENGTH})
def pack_tokens(x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    kept = x.reshape(-1, 4)[mask.reshape(-1).nonzero().squeeze(1)]
    return kept, torch.cat([torch.zeros(1, dtype=torch.int64), mask.sum(1).cumsum(0)])


@family.function(
    {"ids": integers(9, 2, 7), "embeds": normal(2, 7, 4), "image": normal(14, 4)}, {"image": {0: "patches"}}
)
def image_tokens_scattered(ids: Tensor, embeds: Tensor, image: Tensor) -> Tensor:
    where = (ids == 3).unsqueeze(-1).expand_as(embeds)
    return embeds.masked_scatter(where, image)


@family.function({"x": normal(2, 9, 6), "keep": integers(9, 2, 4)}, {"x": BATCH_LENGTH, "keep": BATCH})
def masked_autoencoder_restore(x: Tensor, keep: Tensor) -> Tensor:
    kept = torch.gather(x, 1, keep.unsqueeze(-1).repeat(1, 1, 6))
    filler = torch.zeros(1, 1, 6).repeat(x.shape[0], x.shape[1] - 4, 1)
    return torch.cat([kept, filler], dim=1)


@family.function({"x": normal(2, 12, 4)}, ALL)
def blockwise_attention(x: Tensor) -> Tensor:
    b, n, c = x.shape
    blocks = x.view(b, n // 4, 4, c)
    before = functional.pad(blocks, (0, 0, 0, 0, 1, 0))[:, :-1]
    keys = torch.cat([before, blocks], dim=2)
    return (torch.einsum("bnqc,bnkc->bnqk", blocks, keys).softmax(-1) @ keys).reshape(b, n, c)


@family.function({"q": normal(2, 6, 4, 8), "k": normal(2, 6, 2, 8)}, {"q": BATCH_LENGTH, "k": BATCH_LENGTH})
def grouped_query_einsum(q: Tensor, k: Tensor) -> Tensor:
    k = k[:, :, :, None].expand(-1, -1, -1, 2, -1).flatten(2, 3)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * 8**-0.5
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), k).flatten(2)


@family.function({"x": normal(2, 6, 8)}, ALL)
def linear_attention_elu(x: Tensor) -> Tensor:
    q, k = functional.elu(x) + 1, functional.elu(x * 0.5) + 1
    context = torch.einsum("bnd,bne->bde", k, x)
    return torch.einsum("bnd,bde->bne", q, context) / torch.einsum("bnd,bd->bn", q, k.sum(1)).unsqueeze(-1)


@family.function({"x": normal(2, 8, 6)}, {"x": {0: "batch", 2: "length"}})
def stats_pooling(x: Tensor) -> Tensor:
    return torch.cat([x.mean(-1), x.var(-1, unbiased=True).clamp(min=1e-6).sqrt(), x.amax(-1)], dim=1)


@family.function({"x": normal(2, 8)})
def cosine_margin(x: Tensor) -> Tensor:
    unit = x / x.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    return (unit @ unit.t()).clamp(-1, 1) * 30


@family.function({"x": normal(2, 4, 6, 6), "flow": normal(2, 2, 6, 6)}, {"x": BATCH, "flow": BATCH})
def warp_by_flow(x: Tensor, flow: Tensor) -> Tensor:
    ys, xs = torch.meshgrid(torch.arange(6.0), torch.arange(6.0), indexing="ij")
    at = torch.stack([xs, ys])[None] + flow
    grid = torch.stack([2 * at[:, 0] / 5 - 1, 2 * at[:, 1] / 5 - 1], dim=-1)
    sampled = functional.grid_sample(x, grid, align_corners=True) if False else grid
    return sampled.permute(0, 3, 1, 2) + x[:, :2]


@family.function({"x": normal(2, 4, 5, 5), "y": normal(2, 4, 5, 5)}, {"x": BATCH, "y": BATCH})
def correlation_volume(x: Tensor, y: Tensor) -> Tensor:
    padded = functional.pad(y, (1, 1, 1, 1))
    parts = [(x * padded[:, :, i : i + 5, j : j + 5]).mean(1, keepdim=True) for i in range(3) for j in range(3)]
    return torch.cat(parts, dim=1)


@family.function({"p": normal(2, 6, 3), "q": normal(2, 5, 3)}, {"p": BATCH_LENGTH, "q": BATCH})
def pairwise_distance(p: Tensor, q: Tensor) -> tuple[Tensor, Tensor]:
    squared = (p**2).sum(-1, keepdim=True) - 2 * p @ q.transpose(1, 2) + (q**2).sum(-1).unsqueeze(1)
    return squared, (p[:, :, None] - q[:, None]).pow(2).sum(-1).clamp(min=0).sqrt().argmin(-1)


@family.function({"q": normal(3, 4)})
def quaternion_to_matrix(q: Tensor) -> Tensor:
    r, i, j, k = torch.unbind(q / q.norm(dim=-1, keepdim=True), -1)
    rows = [1 - 2 * (j * j + k * k), 2 * (i * j - k * r), 2 * (i * k + j * r)]
    rows += [2 * (i * j + k * r), 1 - 2 * (i * i + k * k), 2 * (j * k - i * r)]
    rows += [2 * (i * k - j * r), 2 * (j * k + i * r), 1 - 2 * (i * i + j * j)]
    return torch.stack(rows, -1).reshape(*q.shape[:-1], 3, 3)


@family.function({"x": normal(3, 6)})
def six_d_rotation(x: Tensor) -> Tensor:
    a, b = x[..., :3], x[..., 3:]
    first = functional.normalize(a, dim=-1)
    second = functional.normalize(b - (first * b).sum(-1, keepdim=True) * first, dim=-1)
    third = torch.stack(
        [
            first[..., 1] * second[..., 2] - first[..., 2] * second[..., 1],
            first[..., 2] * second[..., 0] - first[..., 0] * second[..., 2],
            first[..., 0] * second[..., 1] - first[..., 1] * second[..., 0],
        ],
        -1,
    )
    return torch.stack((first, second, third), dim=-2)
