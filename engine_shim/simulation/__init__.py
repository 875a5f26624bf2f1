"""The seeded world: the router's and the shims' real machines on virtual time, with an unkind network and deaths."""
