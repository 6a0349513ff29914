"""Simulations: what would happen to a fleet, and what would have been done in a run. No clock, no network, no files."""
