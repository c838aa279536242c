"""MatMul and Gemm: order of products, constants in weights, vectors."""

ORDER = (
    "fold_into_weights",
    "gemv",
    "simplify_matmul",
)
"""The files in the order in which they are tried; those that are not named come last, by name."""
