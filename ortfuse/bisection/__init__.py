"""Finding the smallest change that moves an output: of a pipeline of ortfuse, or of the runtime's own optimisers."""
