"""What every process of ours asks of its operating system when it starts; routers and shims share it."""
