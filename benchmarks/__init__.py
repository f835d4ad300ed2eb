"""Measurements, each a command of its own: `python -m benchmarks.relay --help` and so on, from the project's folder."""
