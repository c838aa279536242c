"""Time and memory with large weights."""
