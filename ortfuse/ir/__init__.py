"""Graphs of a model: traversal, scopes, editing, and properties of operators that do not depend on operands."""
