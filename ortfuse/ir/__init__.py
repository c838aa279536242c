"""The graphs of a model: traversal, scopes, editing, and what is known about operators independently of their operands."""
