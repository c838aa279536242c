"""Lower operators of ONNX Runtime that a model has to operators of the standard, for targets without kernels for them."""

ORDER = ()
"""The files in the order in which they are tried; those that are not named come last, by name."""
