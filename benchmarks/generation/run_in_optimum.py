"""Generate in Optimum and print the times: ``python run_in_optimum.py REQUEST``, in an environment that has Optimum.

The request is JSON: `models` (files by name), `config` (of transformers), `marks` (numbers of tokens of a prompt), `new`
(tokens that are generated), `rounds` and `threads`. The answer is one line of JSON: seconds of the prompt and of a step by name
and mark, of each round, and the tokens.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import time
from typing import Any


def _without(name: str) -> None:
    """Hide a package: one for another version of transformers ends Optimum's import."""
    find = importlib.util.find_spec
    importlib.util.find_spec = lambda wanted, *rest: None if wanted == name else find(wanted, *rest)


def main(request: dict[str, Any]) -> dict[str, Any]:
    """Generate with each model in turn, round after round."""
    _without("diffusers")
    import onnxruntime
    import torch
    from optimum.onnxruntime import ORTModelForCausalLM
    from transformers import AutoConfig, GenerationConfig

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = request["threads"]
    options.add_session_config_entry("session.force_spinning_stop", "1")
    config = AutoConfig.for_model(**request["config"])
    models = {}
    for name, file in request["models"].items():
        session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
        models[name] = ORTModelForCausalLM(
            config=config, session=session, use_io_binding=True, generation_config=GenerationConfig()
        )
    found: dict[str, Any] = {"times": [], "tokens": {}}
    for mark in request["marks"]:
        torch.manual_seed(0)
        prompt = torch.randint(3, 1000, (1, mark))
        for number in range(request["rounds"] + 1):
            for name, model in models.items():
                first, _ = _timed(model, prompt, 1)
                whole, tokens = _timed(model, prompt, request["new"] + 1)
                if number:  # the first round warms up
                    found["times"].append([name, mark, first, (whole - first) / request["new"]])
                found["tokens"][f"{name} {mark}"] = tokens
    return found


def _timed(model: Any, prompt: Any, new: int) -> tuple[float, list[int]]:
    started = time.perf_counter()
    tokens = model.generate(prompt, max_new_tokens=new, min_new_tokens=new, do_sample=False, pad_token_id=0)
    return time.perf_counter() - started, tokens[0].tolist()


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
