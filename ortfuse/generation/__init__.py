"""Generators: exported decoders with caches, made into one model for prompts and steps, whose caches stay in place."""
