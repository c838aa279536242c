"""Lower operators of ONNX Runtime that a model has already to operators of the standard."""

TARGETS = ("portable",)

ORDER = ()
"""The files in the order in which they are tried; those that are not named come last, by name."""
