"""Run a model or a part of one: inputs, sessions, float64 evaluation, crash isolation."""
