"""The results of commands as pages (`--report FILE.html`)."""

from ortfuse.report.html.pages.quantization import quantisation_page

__all__ = [
    "quantisation_page",
]
