"""Pure machines of the router: no clock, no random, no await, no I/O."""
