"""Rules that save nothing in any model that is known, and are applied by name only.

`python -m benchmarks.rules` looks for the models in which rules save something. A rule that is correct and of use in none
stands here. Each file is a pass of its own, `PASS = "contrib.NAME"`, which no list of passes has. It runs where a pipeline names
it (`--passes "all, contrib.roi_align"`), the user does (`--patterns contrib.roi_align`), or a forced choice asks for one of its
rules (`--force roi=RoiAlign`). `ortfuse explain --rule ffn` tells of the sites of rules that are made on request only, and
applies none. The rules are tested as all others are.
"""

ORDER = (
    "fuse_linear_activation_linear",
    "fuse_glu",
    "embed_layer_normalization",
    "fuse_roi_align",
    "fuse_losses",
    "fuse_softplus_and_mish",
    "unbroadcast_mask",
)
"""The files in the order in which they are tried; those that are not named come last, by name."""
