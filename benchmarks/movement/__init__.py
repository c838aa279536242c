"""Whether simplified chains of data movement are right, and how far from the shortest."""
