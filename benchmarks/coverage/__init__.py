"""Coverage: the sites that each tool fuses, and the results that it breaks."""
