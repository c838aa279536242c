"""Image generation."""

from __future__ import annotations

from drawing import Input
from exporting import Case
from torch import nn

from cases.common import SDPA_AND_EAGER, TS_AND_DYNAMO


def unet(attention: str) -> nn.Module:
    """Stable Diffusion's UNet, small: self- and cross-attention, GEGLU, group norms with SiLU, embedded time steps.

    Eager attention joins batch and heads in one axis and scales inside ``baddbmm``.
    """
    from diffusers import UNet2DConditionModel  # other models are exported where it is not installed
    from diffusers.models.attention_processor import AttnProcessor

    model = UNet2DConditionModel(
        sample_size=8,
        block_out_channels=(8, 8),
        layers_per_block=1,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
        norm_num_groups=4,
        cross_attention_dim=16,
        attention_head_dim=2,
    )
    if attention == "eager":
        model.set_attn_processor(AttnProcessor())
    return model


CASES = (
    Case(
        "unet",
        unet,
        {
            "sample": Input(("batch", 4, 8, 8), "normal"),
            "timestep": Input(("batch",), "tokens", high=1000),
            "encoder_hidden_states": Input(("batch", "sequence", 16), "normal"),
        },
        ({"batch": 2, "sequence": 7}, {"batch": 3, "sequence": 11}),
        SDPA_AND_EAGER,
        TS_AND_DYNAMO,
    ),
)
