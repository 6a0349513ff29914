"""The ranks of this node: their processes, twins, warden and watch threads."""
