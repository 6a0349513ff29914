"""Versions of the user's program on this node: where they run, and whether they can start."""
