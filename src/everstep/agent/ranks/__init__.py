"""The ranks of this node: how they are started, their processes, twins, warden and watch threads, drills."""
