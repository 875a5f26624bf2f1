"""vLLM behind the shim: a connector inside its processes, and what the shim's own process keeps of it."""
