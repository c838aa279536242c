"""Work around fusions of ONNX Runtime that make a model slower, change its results, or crash."""

ORDER = (
    "block_matmul_scale_fusion",
    "enable_quantized_gemm",
    "block_pad_fusion",
    "int8_qdq_to_uint8",
    "block_skip_layer_normalization",
    "avoid_matmul_transpose_fusion_bugs",
    "add_zero_points_to_dequantize",
)
"""The files in the order in which they are tried; those that are not named come last, by name."""
