"""Reports that people can look at: one self-contained page, which opens from the disk and needs no network."""
