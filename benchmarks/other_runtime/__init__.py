"""Beside another runtime."""
