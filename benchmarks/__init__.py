"""Measurements, a folder per question; `benchmarks.results` keeps their results."""
