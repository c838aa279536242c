"""Graphs of a model: walks over them, their scopes, and what is known of operators whatever their operands."""
