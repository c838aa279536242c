"""Activations spelled out, with and without bias."""
