"""Experts: dispatch tokens to the ranks that hold their experts, and combine what those computed. Usable by itself."""
