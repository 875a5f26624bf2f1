"""The reference engine: torch, paged KV, continuous batching; small enough to read in one sitting."""

import os

# OpenMP threads spin for milliseconds while they wait for each other. As soon as another process wants the core, which
# is the rule when a prefill and a decode engine share a small machine, every kernel then takes a scheduler's time slice
# instead of microseconds. libgomp reads this once, when torch is first imported.
os.environ.setdefault("GOMP_SPINCOUNT", "200")
