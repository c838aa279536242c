"""The file genai_config.json, by which onnxruntime-genai loads a generator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ortfuse.generation.generator_interface import GeneratorInterface

NAME = "genai_config.json"


def genai_config(interface: GeneratorInterface, hidden_size: int, heads: int) -> dict[str, Any]:
    """The content of the file. Token ids of begin and end are unknown to a model: they are 0 until a tokenizer tells."""
    keys = [cache for cache in interface.caches if cache.kind == "key"]
    groups, size = (keys[0].shape[1], keys[0].shape[3]) if keys and len(keys[0].shape) == 4 else (heads, 0)
    return {
        "model": {
            "bos_token_id": 0,
            "eos_token_id": 0,
            "pad_token_id": 0,
            "context_length": interface.max_length,
            "decoder": {
                "session_options": {"log_id": "onnxruntime-genai", "provider_options": []},
                "filename": "model.onnx",
                "head_size": size,
                "hidden_size": hidden_size,
                "inputs": {
                    "input_ids": interface.tokens,
                    "attention_mask": interface.mask,
                    "past_key_names": "past_key_values.%d.key",
                    "past_value_names": "past_key_values.%d.value",
                },
                "outputs": {
                    "logits": interface.logits,
                    "present_key_names": "present.%d.key",
                    "present_value_names": "present.%d.value",
                },
                "num_attention_heads": heads,
                "num_hidden_layers": len(keys),
                "num_key_value_heads": groups,
            },
            "type": "decoder",
            "vocab_size": interface.vocabulary,
        },
        "search": {
            "diversity_penalty": 0.0,
            "do_sample": False,
            "early_stopping": True,
            "length_penalty": 1.0,
            "max_length": interface.max_length,
            "min_length": 0,
            "no_repeat_ngram_size": 0,
            "num_beams": 1,
            "num_return_sequences": 1,
            "past_present_share_buffer": all(cache.in_place for cache in interface.caches),
            "repetition_penalty": 1.0,
            "temperature": 1.0,
            "top_k": 1,
            "top_p": 1.0,
        },
    }


def write_genai_config(folder: Path, interface: GeneratorInterface, model: ir.Model) -> Path | None:
    """Write the file; `None` where onnxruntime-genai could not run the model, which has other inputs than its decoders."""
    if interface.fixed or interface.states:
        return None
    attention = [node for node in model.graph if node.op_type == "GroupQueryAttention"]
    heads = attention[0].attributes.get_int("num_heads", 0) or 0
    groups = interface.caches[0].shape
    config = genai_config(interface, heads * groups[-1], heads)
    path = folder / NAME
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return path
