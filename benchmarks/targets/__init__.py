"""Other runtimes: which operators, kernels and results each of them takes."""
