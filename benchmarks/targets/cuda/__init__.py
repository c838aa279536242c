"""The CUDA provider: its kernels, what they compute, and how long results take on a GPU."""
