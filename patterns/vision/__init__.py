"""Boxes and enlarged images."""
