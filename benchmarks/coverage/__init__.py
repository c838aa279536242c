"""Which sites each tool fuses, and which results it breaks."""
