"""Memory to memory: one port, one thread that owns it."""
