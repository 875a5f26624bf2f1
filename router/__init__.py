"""The router: HTTP in, two legs out. Never imports torch, nixl or engine_shim."""
