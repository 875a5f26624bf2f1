"""Upstream calls."""
