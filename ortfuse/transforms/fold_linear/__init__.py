"""Passes that fold linear operators into weights of MatMul and Gemm: scales, offsets, column orders, sibling
MatMuls.
"""
