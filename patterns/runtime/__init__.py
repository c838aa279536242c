"""Rewrites that keep the runtime's own optimisations from making a model slower, from changing it, or from crashing on it."""
