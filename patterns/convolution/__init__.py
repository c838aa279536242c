"""Convolutions and pools: constants in their weights, padding in their windows, parallel and consecutive ones in one."""

ORDER = (
    "causal_conv_decode_step",
    "sink_resize_of_concat_below_conv",
    "conv2d_to_conv1d",
    "fuse_conv_relu",
    "patchify_to_conv",
    "select_pool_kernel",
    "depthwise_conv1d_to_conv2d",
    "fuse_depth_to_space",
)
"""The files in the order in which they are tried; those that are not named come last, by name."""
