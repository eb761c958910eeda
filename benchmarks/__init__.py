"""Benchmarks: one question a file; ``python -m benchmarks`` asks them all."""
