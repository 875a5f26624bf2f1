"""HTTP of the shim: OpenAI routes, health, metrics, the side channel."""
