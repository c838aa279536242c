"""Canonicalize, reassociate and fold MatMul, Gemm and Einsum."""

ORDER = (
    "canonicalize_linear_layers",
    "decompose_einsum",
    "vector_matmul_to_row_matmul",
    "simplify_matmul",
)
"""The files in the order in which they are tried; those that are not named come last, by name."""
