"""What the runtime's kernels refuse, what they cost, and the cost table made of it."""
