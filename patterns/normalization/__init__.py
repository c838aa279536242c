"""Fuse and decompose normalisations, channel scales and Softmax."""

ORDER = (
    "per_channel_normalization",
    "decompose_group_normalization",
    "fold_scale_and_casts",
    "layer_and_rms_normalization",
    "global_average_pool_to_reduce_mean",
    "softmax",
    "group_and_instance_normalization",
)
"""The files in the order in which they are tried; those that are not named come last, by name."""
