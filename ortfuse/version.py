"""The version of ortfuse."""

__version__ = "0.1.0"
