"""The door: HTTP in."""
