"""The engine shim: an engine, its KV cache, and the fabric that moves it."""

import os

# OpenMP threads spin for milliseconds while they wait for each other. As soon as another process wants the core, which
# is the rule when a prefill and a decode engine share a small machine, every kernel then takes a scheduler's time slice
# instead of microseconds. libgomp reads this once, when torch is first imported, so it has to be said before that.
os.environ.setdefault("GOMP_SPINCOUNT", "3000")
