"""Convolutions and what stands around them."""
