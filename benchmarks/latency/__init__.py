"""Latency of full-size exports, tools side by side."""
