"""Words that the router and the shims both speak. The standard library and msgspec only, no I/O, no clock."""
