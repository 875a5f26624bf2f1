"""The reference engine: torch, paged KV, continuous batching; small enough to read in one sitting."""
