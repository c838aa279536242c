"""Measurements, a folder a question; each folder has its results beside the command that made them."""
