"""Time of the engine itself."""
