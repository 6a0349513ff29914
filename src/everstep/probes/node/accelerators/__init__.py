"""GPUs and other accelerators of the node, through what their makers give."""
