"""The engine shim: an engine, its KV cache, and the fabric that moves it."""
