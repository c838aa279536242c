"""Find the smallest change that moves an output: in an ortfuse pipeline, or in the runtime's own optimisers."""
