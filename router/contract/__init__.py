"""Words that the router and the shims both speak. Standard library only, no I/O, no clock."""
