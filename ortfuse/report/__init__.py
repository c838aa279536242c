"""Reports: documents for the terminal and for HTML pages, and files of other formats."""
