"""Benchmarks of what runs inside a shim."""
