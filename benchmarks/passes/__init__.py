"""Savings by each pass and each rule."""
