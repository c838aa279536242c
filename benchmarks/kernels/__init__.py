"""The runtime's kernels: refusals, errors, times, and the cost table made of them."""
