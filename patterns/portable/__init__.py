"""Lower operators of ONNX Runtime that a model has already to operators of the standard."""

TARGETS = ("portable",)
