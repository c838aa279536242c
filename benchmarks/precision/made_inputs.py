"""Inputs for trained models, made by a program: speech-like audio, the beginnings and ends of files, images of text."""

from __future__ import annotations

import gzip
import io
import json
import struct
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Random = np.random.Generator

RATE = 16000
"""Samples of audio per second."""

_COMMON = (
    "time year people way day man thing woman life child world school state family student group country problem hand part "
    "place case week company system program question work government number night point home water room mother area money"
)
WORDS = _COMMON.split()


def audio(random: Random, seconds: float = 6.0) -> Array:
    """Noise with voiced syllables in some parts: harmonics of a gliding pitch, shaped by formants; float32 between -1 and 1."""
    count = int(seconds * RATE)
    time = np.arange(count) / RATE
    pitch = random.uniform(90, 220) * (1 + 0.08 * np.sin(2 * np.pi * random.uniform(0.5, 2) * time))
    phase = 2 * np.pi * np.cumsum(pitch) / RATE
    formants = random.uniform((300, 900, 2200), (800, 1900, 3000))
    voice = sum(
        np.sin(number * phase) * np.exp(-np.abs(np.subtract.outer(number * pitch, formants)) / 250).sum(axis=1)
        for number in range(1, 24)
    )
    syllables = np.clip(np.sin(2 * np.pi * random.uniform(3, 5) * time + random.uniform(0, 6)), 0, 1) ** 0.5
    talks = np.repeat(random.random(int(seconds) + 1) < 0.6, RATE)[:count]
    loud = random.uniform(0.05, 0.3) * voice / np.abs(voice).max() * syllables * talks
    return (loud + random.normal(0, random.uniform(1e-4, 1e-2), count)).astype(np.float32)


def file(random: Random) -> bytes:
    """A file of a random type."""
    kinds = list(FILES)
    return FILES[kinds[int(random.integers(len(kinds)))]](random)


def words(random: Random, count: int) -> list[str]:
    """Random words."""
    return [str(word) for word in random.choice(WORDS, count)]


def _prose(random: Random) -> str:
    lines = (" ".join(words(random, int(random.integers(5, 14)))).capitalize() for _ in range(random.integers(5, 60)))
    return ".\n".join(lines)


def _python(random: Random) -> str:
    one, two, three = words(random, 3)
    return "import os\nimport sys\n\n" + "\n\n".join(
        f"def {name}_{number}({one}, {two}=None):\n    if {two} is None:\n        return [{three} for {three} in {one}]\n"
        f"    return sys.argv[{number}] + os.path.join({two}, '{name}')\n"
        for number, name in enumerate(words(random, int(random.integers(3, 20))))
    )  # fmt: skip


def _c(random: Random) -> str:
    return "#include <stdio.h>\n#include <stdlib.h>\n\n" + "\n".join(
        f"static int {name}_{number}(const char *{name}, int n) {{\n  for (int i = 0; i < n; i++)\n"
        f'    printf("%d {name}\\n", i * {number});\n  return n;\n}}\n'
        for number, name in enumerate(words(random, int(random.integers(3, 20))))
    )


def _html(random: Random) -> str:
    body = "\n".join(f"<p class='{words(random, 1)[0]}'>{line}</p>" for line in _prose(random).split("\n"))
    return f"<!DOCTYPE html>\n<html>\n<head><title>{words(random, 1)[0]}</title></head>\n<body>\n{body}\n</body>\n</html>\n"


def _json(random: Random) -> str:
    rows = [{"id": n, "name": words(random, 1)[0], "tags": words(random, 3), "score": float(random.random())} for n in
            range(int(random.integers(3, 40)))]  # fmt: skip
    return json.dumps({"items": rows}, indent=int(random.integers(0, 4)))


def _csv(random: Random) -> str:
    rows = (f"{n},{','.join(words(random, 3))},{random.random():.4f}" for n in range(random.integers(5, 80)))
    return "id,first,second,third,score\n" + "\n".join(rows)


def _sql(random: Random) -> str:
    return "\n".join(
        f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, {name}_name VARCHAR(80));\n"
        f"INSERT INTO {name} (id, {name}_name) VALUES ({random.integers(1000)}, '{words(random, 1)[0]}');"
        for name in words(random, int(random.integers(3, 20)))
    )


def _shell(random: Random) -> str:
    return "#!/bin/bash\nset -e\n" + "\n".join(
        f'{name.upper()}="$1"\nif [ -f "${name.upper()}" ]; then\n  echo "{name}"; cp "$1" /tmp/{name}\nfi'
        for name in words(random, int(random.integers(3, 20)))
    )


def _ini(random: Random) -> str:
    return "\n".join(
        f"[{name}]\n{words(random, 1)[0]} = {random.integers(100)}\npath = /etc/{name}.conf\n"
        for name in words(random, int(random.integers(3, 20)))
    )


def _markdown(random: Random) -> str:
    parts = (f"## {name}\n\n- {' '.join(words(random, 6))}\n- `{name}`\n" for name in words(random, 9))
    return f"# {' '.join(words(random, 3))}\n\n{_prose(random)}\n\n" + "\n".join(parts)


def _xml(random: Random) -> str:
    rows = "\n".join(f'  <{name} id="{random.integers(99)}">{name}</{name}>' for name in words(random, 20))
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<root>\n{rows}\n</root>\n'


def _png(random: Random) -> bytes:
    side = int(random.integers(16, 128))
    rows = b"".join(b"\0" + random.integers(0, 60, 3 * side, np.uint8).tobytes() for _ in range(side))

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def _wav(random: Random) -> bytes:
    samples = (audio(random, 1.0) * 32767).astype("<i2").tobytes()
    head = struct.pack("<4sI4s", b"RIFF", 36 + len(samples), b"WAVE")
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, RATE, 2 * RATE, 2, 16)
    return head + form + struct.pack("<4sI", b"data", len(samples)) + samples


def _npz(random: Random) -> bytes:
    made = io.BytesIO()
    np.savez(made, **{words(random, 1)[0]: random.normal(size=(int(random.integers(8, 64)), 16))})
    return made.getvalue()


def _text(make: Callable[[Random], str]) -> Callable[[Random], bytes]:
    return lambda random: make(random).encode()


FILES: Mapping[str, Callable[[Random], bytes]] = {
    **{make.__name__: _text(make) for make in
       (_prose, _python, _c, _html, _json, _csv, _sql, _shell, _ini, _markdown, _xml)},
    "gzip": lambda random: gzip.compress(_prose(random).encode()),
    "png": _png,
    "wav": _wav,
    "npz": _npz,
    "bytes": lambda random: random.bytes(int(random.integers(100, 5000))),
}  # fmt: skip


def line(random: Random, height: int, width: int) -> tuple[Array, str]:
    """A line of text, dark on light with some noise: uint8 [height, width, 3] and what it says."""
    said = " ".join(words(random, int(random.integers(2, 5))))
    return _drawn(random, height, width, [(4, int(0.15 * height), int(0.6 * height), said)]), said


def page(random: Random, height: int, width: int) -> Array:
    """A page with several lines of text of several sizes: uint8 [height, width, 3]."""
    top, texts = int(random.integers(5, 30)), []
    while top < height - 40:
        size = int(random.integers(14, 32))
        texts.append((int(random.integers(5, 60)), top, size, " ".join(words(random, int(random.integers(2, 7))))))
        top += int(size * random.uniform(1.3, 3))
    return _drawn(random, height, width, texts)


def _drawn(random: Random, height: int, width: int, texts: list[tuple[int, int, int, str]]) -> Array:
    from PIL import Image, ImageDraw, ImageFont

    image = Image.new("RGB", (width, height), tuple(random.integers(180, 256, 3).tolist()))
    draw = ImageDraw.Draw(image)
    for left, top, size, said in texts:
        draw.text((left, top), said, tuple(random.integers(0, 90, 3).tolist()), ImageFont.load_default(size))
    noisy = np.asarray(image, np.float32) + random.normal(0, random.uniform(0, 8), (height, width, 1))
    return np.clip(noisy, 0, 255).astype(np.uint8)
