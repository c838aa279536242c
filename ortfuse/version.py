"""The version of ortfuse."""

__version__ = "0.2.0"
