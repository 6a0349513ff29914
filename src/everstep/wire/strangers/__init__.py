"""Whoever connects and has proven nothing: who keeps a place, whose process it is, what was turned away."""
