"""Ranks that wait for a CPU: which one, and who has it."""
