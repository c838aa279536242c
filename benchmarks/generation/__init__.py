"""Whole generations: which exported decoders become generators, whether they write the same tokens, and how fast they are."""
