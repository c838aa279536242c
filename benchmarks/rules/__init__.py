"""Evidence for rules: the models in which each fires, and the loss without it."""
