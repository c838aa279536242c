"""Reports as self-contained HTML pages, which open from the disk and need no network."""
