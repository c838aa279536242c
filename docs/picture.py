"""Draw the README's picture from the summary of benchmarks/precision.

python docs/picture.py            # draw it
python docs/picture.py --check    # only say whether it is drawn from other figures; then the exit code is 1
"""

from __future__ import annotations

import json
import sys
from html import escape
from pathlib import Path

HERE = Path(__file__).parent
FIGURES = HERE.parent / "benchmarks" / "summaries" / "precision.json"
NAMES = {"bert": "BERT-base", "vit": "ViT-B", "minilm": "MiniLM", "gpt2_step": "GPT-2, a step", "llama_step": "Llama, a step",
         "resnet50": "ResNet-50", "lstm": "LSTM", "speech": "a speech net"}  # fmt: skip
OURS = {"float32": "same results", "ortfuse 0.01": "error under 1e-2", "ortfuse 0.05": "error under 5e-2"}
WIDTH, LEFT, BAR, GAP = 760, 120, 17, 16
LETTER = 6.7
"""The width of a letter, at most on average."""


def bars() -> list[tuple[str, list[tuple[str, float, str]]]]:
    """For each model, bars with their label, speedup and class; of the processor with the most number formats."""
    runs = json.loads(FIGURES.read_text())["runs"]
    found = []
    for name, row in max(runs, key=lambda run: len(run["processor"].split()))["result"]["models"].items():
        tools = {tool: one for tool, one in row["tools"].items() if not isinstance(one, str)}
        peers = {
            tool: speedup
            for tool, (speedup, error) in tools.items()
            if tool not in OURS and not tool.startswith("ortfuse") and error <= 0.05
        }
        lines = [(f"ortfuse, {said}", tools[tool][0], "ours") for tool, said in OURS.items() if tool in tools]
        if peers:
            best = max(peers, key=peers.__getitem__)
            lines.append((f"runtime's quantiser ({best})", peers[best], "peer"))
        found.append((NAMES.get(name.partition(".")[0], name), lines))
    return found


def drawing() -> str:
    """The picture as SVG; light or dark as the reader's system is."""
    models = bars()
    longest = max(speed for _, lines in models for _, speed, _ in lines)
    height = 40 + sum(BAR * len(lines) + GAP for _, lines in models)
    right = max(LETTER * len(f"1.00× {label}") for _, lines in models for label, *_ in lines)
    scale = (WIDTH - LEFT - right) / longest
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
        "<title>Speedup over ONNX Runtime's default, model by model</title>"
        "<style>text{font:12.5px system-ui,sans-serif;fill:#1c2024}.soft{fill:#60646c}.ours{fill:#0d74ce}.peer{fill:#b9bbc6}"
        "line{stroke:#b9bbc6;stroke-dasharray:3 3}@media(prefers-color-scheme:dark){text{fill:#eceef0}.soft{fill:#a3a8b0}"
        ".ours{fill:#70b8ff}.peer{fill:#5a5e67}}</style>"
        '<text class="soft" x="0" y="16">times as fast as ONNX Runtime\'s default; runs interleaved, '
        "errors on inputs that no tool has seen; a processor with AMX</text>"
    ]
    y = 34.0
    for name, lines in models:
        parts.append(f'<text x="0" y="{y + 12}" font-weight="600">{escape(name)}</text>')
        for label, speed, kind in lines:
            wide = speed * scale
            parts.append(f'<rect class="{kind}" x="{LEFT}" y="{y}" width="{wide:.1f}" height="{BAR - 4}" rx="2"/>')
            parts.append(
                f'<text class="soft" x="{LEFT + wide + 6:.1f}" y="{y + 10.5}">{speed:.2f}× {escape(label)}</text>'
            )
            y += BAR
        y += GAP
    parts.append(f'<line x1="{LEFT + scale:.1f}" y1="26" x2="{LEFT + scale:.1f}" y2="{y - GAP}"/></svg>')
    return "\n".join(parts) + "\n"


def main(check: bool) -> int:
    """Draw, or compare."""
    path = HERE / "speedups.svg"
    if not check:
        path.write_text(drawing())
    elif path.read_text() != drawing():
        print("docs/speedups.svg: not drawn from the figures of benchmarks/; run python docs/picture.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv))
