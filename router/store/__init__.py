"""Redis: fleet and ledger. The one client code that routers and shims share."""
