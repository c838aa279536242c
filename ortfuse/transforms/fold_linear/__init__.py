"""Passes that fold linear operators into the weights of products: factors, offsets, orders of columns, products of one input."""
