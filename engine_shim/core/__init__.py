"""Pure machines of the shim: no torch, no nixl, no threads, no clock."""
