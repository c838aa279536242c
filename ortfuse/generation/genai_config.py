"""The file genai_config.json, by which onnxruntime-genai loads a generator."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ortfuse.errors import GenerationError
from ortfuse.generation.generator_interface import GeneratorInterface

NAME = "genai_config.json"

_TOKENIZER_FILES = (
    "tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "*.model", "chat_template*",
    "generation_config.json", "config.json", "spiece.model",
)  # fmt: skip


@dataclass(frozen=True)
class SpecialTokens:
    """The token ids that a tokenizer gives a meaning.

    Attributes:
        begin: The token before a text; `None` if it is not known.
        end: The tokens after which a text ends.
        padding: The token that stands for nothing; `None` if it is not known.
    """

    begin: int | None = None
    end: tuple[int, ...] = ()
    padding: int | None = None


def special_tokens_in(folder: Path) -> SpecialTokens:
    """Read the special tokens from the configuration files of a tokenizer's folder.

    Raises:
        GenerationError: A file is no JSON object.
    """
    found: dict[str, Any] = {}
    for name in ("config.json", "generation_config.json"):
        path = folder / name
        if path.is_file():
            try:
                content = json.loads(path.read_text(encoding="utf-8"))
                found |= {key: value for key, value in content.items() if value is not None}
            except (ValueError, AttributeError) as error:
                raise GenerationError(f"{path} is no JSON object: {error}") from error
    end = found.get("eos_token_id", ())
    return SpecialTokens(
        found.get("bos_token_id"), tuple(end) if isinstance(end, list | tuple) else (end,), found.get("pad_token_id")
    )


def tokenizer_files(source: Path) -> list[Path]:
    """The files of a tokenizer in a folder, as transformers save them.

    Raises:
        GenerationError: The folder has none.
    """
    files = sorted({path for pattern in _TOKENIZER_FILES for path in source.glob(pattern) if path.is_file()})
    if not files:
        raise GenerationError(f"{source} has no files of a tokenizer, such as tokenizer.json")
    return files


def copy_files(files: Iterable[Path], folder: Path) -> list[Path]:
    """Copy files into a folder, but for those that are in it; the copies."""
    there = folder.resolve()
    return [Path(shutil.copy2(path, folder / path.name)) for path in files if path.parent.resolve() != there]


def genai_config(interface: GeneratorInterface, hidden_size: int, heads: int, special: SpecialTokens) -> dict[str, Any]:
    """The content of the file. onnxruntime-genai needs a token that ends a text: 0, its own default, if none is known."""
    end = special.end or (0,)
    begin = end[0] if special.begin is None else special.begin
    padding = end[0] if special.padding is None else special.padding
    keys = [cache for cache in interface.caches if cache.kind == "key"]
    groups, size = (keys[0].shape[1], keys[0].shape[3]) if keys and len(keys[0].shape) == 4 else (heads, 0)
    return {
        "model": {
            "bos_token_id": begin,
            "eos_token_id": end[0] if len(end) == 1 else list(end),
            "pad_token_id": padding,
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
            **({"chunk_size": interface.longest_run} if interface.longest_run else {}),
        },
    }


def write_genai_config(
    folder: Path, interface: GeneratorInterface, model: ir.Model, special: SpecialTokens
) -> Path | None:
    """Write the file; `None` if onnxruntime-genai cannot run the model, which has other inputs than its decoders.

    A file that an earlier generator left in the folder is removed then.
    """
    path = folder / NAME
    pairs = {(cache.layer, cache.kind) for cache in interface.caches if len(cache.shape) == 4 and cache.axis == 2}
    layers = range(len(interface.caches) // 2)
    is_paired = pairs == {(layer, kind) for layer in layers for kind in ("key", "value")}
    if interface.fixed or interface.states or interface.embedding or not is_paired:
        path.unlink(missing_ok=True)
        return None
    attention = [node for node in model.graph if node.op_type == "GroupQueryAttention"]
    heads = attention[0].attributes.get_int("num_heads", 0) or 0
    config = genai_config(interface, heads * interface.caches[0].shape[-1], heads, special)
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return path
