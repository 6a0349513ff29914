"""GPUs and other accelerators of the node, through the tools of their vendors."""
