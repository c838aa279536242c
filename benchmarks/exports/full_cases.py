"""The full-size models: architectures of the golden suite with the configurations that people run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import transformers as tf
from cases.caching import CachedDecoder, MaskedCrossDecoder, PositionedDecoder, UnmaskedCrossDecoder, cache_inputs
from cases.common import image
from cases.seq2seq import T5Head
from drawing import Input
from exporting import Case
from torch import nn

from benchmarks.exports import networks
from benchmarks.exports.building import build, built, layered

TOKEN_SIZES = ({"batch": 2, "sequence": 24}, {"batch": 3, "sequence": 17})
IMAGE_SIZES = ({"batch": 2}, {"batch": 3})
STEP_SIZES = ({"batch": 2, "sequence": 4, "past": 13}, {"batch": 3, "sequence": 1, "past": 20})
T5_STEP_SIZES = (
    {"batch": 2, "sequence": 4, "past": 13, "source": 19},
    {"batch": 3, "sequence": 1, "past": 20, "source": 23},
)
WHISPER_STEP_SIZES = ({"batch": 2, "past": 13}, {"batch": 3, "past": 20})
SAMPLE_SIZES = ({"batch": 2, "samples": 4000}, {"batch": 3, "samples": 5200})

MINILM: Mapping[str, Any] = {"hidden_size": 384, "num_hidden_layers": 6, "intermediate_size": 1536}
LLAMA: Mapping[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 8,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "tie_word_embeddings": True,
}
WHISPER: Mapping[str, Any] = {"decoder_start_token_id": 1}  # the rest of the defaults are those of tiny
T5: Mapping[str, Any] = {"d_model": 512, "num_layers": 6, "num_heads": 8}
DEBERTA: Mapping[str, Any] = {
    "vocab_size": 32000,
    "num_hidden_layers": 3,
    "relative_attention": True,
    "position_buckets": 256,
    "share_att_key": True,
    "pos_att_type": ["p2c", "c2p"],
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
    "type_vocab_size": 0,
}
WAV2VEC2: Mapping[str, Any] = {"num_hidden_layers": 4}


def gpt2_step(attention: str) -> nn.Module:
    """GPT-2 (124 M) with past keys and values and positions given."""
    model = build("GPT2LMHeadModel", "GPT2Config", {}, attention)
    return layered(PositionedDecoder, ("input_ids", "attention_mask", "position_ids"), 12)(model)


def llama_step(attention: str) -> nn.Module:
    """The Llama of 8 layers with past keys and values."""
    model = build("LlamaForCausalLM", "LlamaConfig", LLAMA, attention)
    return layered(CachedDecoder, ("input_ids", "attention_mask"), 8)(model)


def whisper_encoder(attention: str) -> nn.Module:
    """Whisper-tiny's encoder."""
    return build("WhisperForConditionalGeneration", "WhisperConfig", WHISPER, attention).get_encoder()


def whisper_step(attention: str) -> nn.Module:
    """Whisper-tiny's decoder for one token with caches of its own past and of the encoder's keys and values."""
    model = build("WhisperForConditionalGeneration", "WhisperConfig", WHISPER, attention)
    return layered(UnmaskedCrossDecoder, ("input_ids",), 4)(model, model.get_decoder(), model.proj_out)


def t5_step(attention: str) -> nn.Module:
    """T5-small's decoder with caches."""
    model = build("T5ForConditionalGeneration", "T5Config", T5, attention)
    kind = layered(MaskedCrossDecoder, ("input_ids", "encoder_attention_mask"), 6)
    return kind(model, model.decoder, T5Head(model))


def resnet50() -> nn.Module:
    """ResNet-50 image classifier."""
    return tf.ResNetForImageClassification(tf.ResNetConfig(num_labels=1000))


def _ids(vocabulary: int) -> dict[str, Input]:
    return {"input_ids": Input(("batch", "sequence"), "tokens", high=vocabulary)}


def text(vocabulary: int) -> dict[str, Input]:
    return _ids(vocabulary) | {"attention_mask": Input(("batch", "sequence"), "mask")}


def step(vocabulary: int) -> dict[str, Input]:
    return _ids(vocabulary) | {"attention_mask": Input(("batch", "past + sequence"), "mask")}


SEGMENTS = {"token_type_ids": Input(("batch", "sequence"), "tokens", high=2)}
POSITION_IDS = {"position_ids": Input(("batch", "sequence"), "tokens", high=1024)}
SDPA = ("sdpa",)

CASES = (
    Case("bert", built("BertModel", "BertConfig"), text(30522) | SEGMENTS, TOKEN_SIZES, SDPA),
    Case("minilm", built("BertModel", "BertConfig", **MINILM), text(30522) | SEGMENTS, TOKEN_SIZES, SDPA),
    Case("distilbert", built("DistilBertModel", "DistilBertConfig"), text(30522), TOKEN_SIZES, SDPA),
    Case("gpt2", built("GPT2LMHeadModel", "GPT2Config", use_cache=False), text(50257), TOKEN_SIZES, SDPA),
    Case(
        "gpt2_step", gpt2_step, step(50257) | POSITION_IDS | cache_inputs("past", 12, "past", 64, 12), STEP_SIZES, SDPA
    ),
    Case("llama", built("LlamaForCausalLM", "LlamaConfig", **LLAMA, use_cache=False), text(32000), TOKEN_SIZES, SDPA),
    Case("llama_step", llama_step, step(32000) | cache_inputs("past", 4, "past", 64, 8), STEP_SIZES, SDPA),
    Case("vit", built("ViTForImageClassification", "ViTConfig", num_labels=1000), image(224), IMAGE_SIZES, SDPA),
    Case("swin", built("SwinForImageClassification", "SwinConfig", num_labels=1000), image(224), IMAGE_SIZES, SDPA),
    Case("resnet50", resnet50, image(224), IMAGE_SIZES),
    Case(
        "segformer",
        built("SegformerForSemanticSegmentation", "SegformerConfig", num_labels=150),
        image(224),
        IMAGE_SIZES,
        SDPA,
    ),
    Case(
        "whisper_encoder", whisper_encoder, {"input_features": Input(("batch", 80, 3000), "normal")}, IMAGE_SIZES, SDPA
    ),
    Case(
        "whisper_step",
        whisper_step,
        {"input_ids": Input(("batch", 1), "tokens", high=51865)}
        | cache_inputs("past", 6, "past", 64, 4)
        | cache_inputs("cross", 6, 1500, 64, 4),
        WHISPER_STEP_SIZES,
        SDPA,
    ),
    Case("t5_encoder", built("T5EncoderModel", "T5Config", **T5), text(32128), TOKEN_SIZES, SDPA),
    Case(
        "t5_step",
        t5_step,
        _ids(32128)
        | {"encoder_attention_mask": Input(("batch", "source"), "mask")}
        | cache_inputs("past", 8, "past", 64, 6)
        | cache_inputs("cross", 8, "source", 64, 6),
        T5_STEP_SIZES,
        SDPA,
    ),
    Case("deberta", built("DebertaV2Model", "DebertaV2Config", **DEBERTA), text(32000), TOKEN_SIZES, ("eager",)),
    Case(
        "clip_text",
        built("CLIPTextModel", "CLIPTextConfig", bos_token_id=1, eos_token_id=2),
        text(49408),
        TOKEN_SIZES,
        SDPA,
    ),
    Case(
        "wav2vec2",
        built("Wav2Vec2ForCTC", "Wav2Vec2Config", **WAV2VEC2),
        {"input_values": Input(("batch", "samples"), "normal")},
        SAMPLE_SIZES,
        SDPA,
    ),
    *networks.CASES,
)
