"""onnxruntime-genai generates with the folder that the command writes."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

import ortfuse

GOLDEN = Path(__file__).parents[2] / "golden" / "models"
PROGRAM = """
import sys
import onnxruntime_genai as genai

model = genai.Model(sys.argv[1])
parameters = genai.GeneratorParams(model)
parameters.set_search_options(max_length=40, do_sample=False, batch_size=1)
generator = genai.Generator(model, parameters)
generator.append_tokens([[5, 6, 7]])
while not generator.is_done():
    generator.generate_next_token()
print(*generator.get_sequence(0))
"""


@pytest.mark.skipif(
    importlib.util.find_spec("onnxruntime_genai") is None, reason="needs onnxruntime-genai: pip install '.[genai]'"
)
@pytest.mark.parametrize("name", ["llama_cache.sdpa.ts", "gpt2_cache.eager.dynamo", "gemma_cache.sdpa.ts"])
@pytest.mark.parametrize("last_logits", [False, True])
def test_genai_writes_the_same_tokens(name: str, last_logits: bool, tmp_path: Path) -> None:
    ortfuse.generator(GOLDEN / f"{name}.onnx", tmp_path / "out", max_length=60, last_logits=last_logits)
    wanted = ortfuse.Generator(tmp_path / "out").generate([[5, 6, 7]], max_new_tokens=37)[0]
    end = next(token for token in range(100) if token not in wanted)
    config = tmp_path / "out" / "genai_config.json"
    config.write_text(config.read_text().replace('"eos_token_id": 0', f'"eos_token_id": {end}'))
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "out")], capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert [int(token) for token in ran.stdout.split()] == [5, 6, 7, *wanted]
