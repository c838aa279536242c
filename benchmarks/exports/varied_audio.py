"""Networks over samples and sets: filter banks, separation, vocoders, quantisers, attention to learnt queries."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.exports.varied_declare import BATCH_LENGTH, Family, normal

family = Family()
RECIPES = family.recipes
SERIES = {"x": normal(2, 12, 6)}
ROWS = {"x": BATCH_LENGTH}


class Spectrum(nn.Module):
    """A filter bank by convolution with sines, logarithm, normalisation by utterance, and a small network."""

    def __init__(self) -> None:
        super().__init__()
        angle = 2 * math.pi * torch.arange(9)[:, None] * torch.arange(16)[None] / 16
        self.register_buffer("real", torch.cos(angle).unsqueeze(1))
        self.register_buffer("imaginary", torch.sin(angle).unsqueeze(1))
        self.register_buffer("mel", torch.rand(6, 9))
        self.conv = nn.Sequential(nn.Conv1d(6, 8, 5, padding=2, dilation=1), nn.ReLU(), nn.BatchNorm1d(8))

    def forward(self, x: Tensor) -> Tensor:
        emphasised = torch.cat([x[:, :1], x[:, 1:] - 0.97 * x[:, :-1]], dim=1)
        frames = functional.pad(emphasised.unsqueeze(1), (8, 8))
        power = functional.conv1d(frames, self.real, stride=8).pow(2) + functional.conv1d(
            frames, self.imaginary, stride=8
        ).pow(2)
        mel = torch.log(torch.matmul(self.mel, power).clamp(min=1e-10))
        mel = (mel - mel.mean(-1, keepdim=True)) / (mel.std(-1, keepdim=True) + 1e-5)
        return self.conv(mel).amax(-1)


class Separation(nn.Module):
    """Conv-TasNet: encoder, global normalisation, mask, decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Conv1d(1, 8, 4, 2, bias=False), nn.ConvTranspose1d(8, 1, 4, 2, bias=False)
        self.gain, self.bias = nn.Parameter(torch.ones(1, 8, 1)), nn.Parameter(torch.zeros(1, 8, 1))
        self.mask = nn.Sequential(nn.Conv1d(8, 12, 1), nn.PReLU(), nn.Conv1d(12, 16, 1))

    def forward(self, x: Tensor) -> Tensor:
        e = functional.relu(self.encoder(x.unsqueeze(1)))
        mean = e.mean((1, 2), keepdim=True)
        var = ((e - mean) ** 2).mean((1, 2), keepdim=True)
        y = self.gain * (e - mean) / torch.pow(var + 1e-8, 0.5) + self.bias
        b, n, k = e.shape
        masks = self.mask(y).view(b, 2, n, k).softmax(1)
        return self.decoder((masks * e.unsqueeze(1)).view(b * 2, n, k)).view(b, 2, -1)


class Vocoder(nn.Module):
    """HiFi-GAN: transposed convolutions and residual blocks, averaged."""

    def __init__(self) -> None:
        super().__init__()
        self.pre, self.post = nn.Conv1d(6, 16, 7, padding=3), nn.Conv1d(8, 1, 7, padding=3)
        self.up = nn.utils.parametrizations.weight_norm(nn.ConvTranspose1d(16, 8, 4, 2, padding=1))
        self.res = nn.ModuleList([nn.Conv1d(8, 8, k, padding=k // 2) for k in (3, 5, 7)])

    def forward(self, x: Tensor) -> Tensor:
        y = self.up(functional.leaky_relu(self.pre(x), 0.1))
        total = None
        for r in self.res:
            z = r(functional.leaky_relu(y, 0.1)) + y
            total = z if total is None else total + z
        return torch.tanh(self.post(functional.leaky_relu(total / 3)))


class Snake(nn.Module):
    """x + sin(a x)^2 / a, and a quantiser's nearest code."""

    def __init__(self) -> None:
        super().__init__()
        self.alpha, self.conv, self.codes = (
            nn.Parameter(torch.ones(1, 6, 1)),
            nn.Conv1d(6, 4, 3, padding=1),
            nn.Embedding(9, 4),
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x + (self.alpha + 1e-9).reciprocal() * torch.sin(self.alpha * x).pow(2))
        z = y.permute(0, 2, 1).reshape(-1, 4)
        d = (
            z.pow(2).sum(1, keepdim=True)
            - 2 * z @ self.codes.weight.t()
            + self.codes.weight.pow(2).sum(1, keepdim=True).t()
        )
        q = self.codes((-d).max(1)[1]).view(x.shape[0], -1, 4).transpose(1, 2)
        return y + (q - y)


class Seq2Seq(nn.Module):
    """Bahdanau's attention, three steps of a decoder."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.cell = nn.GRU(6, 8, batch_first=True), nn.GRUCell(16, 8)
        self.w, self.u, self.v, self.out = nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 1), nn.Linear(16, 8)

    def forward(self, x: Tensor) -> Tensor:
        memory, hidden = self.encoder(x)
        h = hidden[-1]
        token, outs = torch.zeros(x.shape[0], 8), []
        for _ in range(3):
            score = self.v(torch.tanh(self.w(memory) + self.u(h).unsqueeze(1))).squeeze(-1)
            context = torch.bmm(score.softmax(-1).unsqueeze(1), memory).squeeze(1)
            h = self.cell(torch.cat([token, context], -1), h)
            token = self.out(torch.cat([h, context], -1))
            outs.append(token)
        return torch.stack(outs, 1)


class Set(nn.Module):
    """Attention to learnt queries (Perceiver, set transformers), with PyTorch's module and a mask of padding."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how, self.seeds = how, nn.Parameter(torch.randn(1, 3, 16))
        self.mha = nn.MultiheadAttention(16, 2, batch_first=True, kdim=6, vdim=6)
        self.decoder, self.embed = nn.TransformerDecoderLayer(16, 2, 24, batch_first=True), nn.Linear(6, 16)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        seeds = self.seeds.expand(x.shape[0], -1, -1)
        if self.how == "decoder":
            return self.decoder(seeds, self.embed(x), memory_key_padding_mask=mask == 0)
        return seeds + self.mha(seeds, x, x, key_padding_mask=mask == 0)[0]


AUDIO: dict[str, Callable[[], nn.Module]] = {"vocoder": Vocoder, "snake_codes": Snake}
family.add("filter_bank", Spectrum, {"x": normal(2, 64)})
family.add("conv_tasnet", Separation, {"x": normal(2, 40)}, {"x": BATCH_LENGTH})
for name, audio in AUDIO.items():
    family.add(name, audio, {"x": normal(2, 6, 10)}, {"x": {0: "batch", 2: "length"}})
family.add("bahdanau", Seq2Seq, SERIES, ROWS)
PADDED = {"x": normal(2, 7, 6), "mask": lambda: (torch.arange(7) < torch.tensor([[7], [5]])).long()}
for how in ("decoder", "attention"):
    family.add(f"set_{how}", functools.partial(Set, how), PADDED, {"x": BATCH_LENGTH, "mask": BATCH_LENGTH})
