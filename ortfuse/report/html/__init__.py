"""Reports that people can look at: one self-contained page, which opens from the disk and needs no network."""

from ortfuse.report.document import Bars, Cards, Document, Notes, Rows, Scatter, Sites
from ortfuse.report.html.write_page import demand_libraries, write_page

__all__ = [
    "Bars",
    "Cards",
    "Document",
    "Notes",
    "Rows",
    "Scatter",
    "Sites",
    "demand_libraries",
    "write_page",
]
