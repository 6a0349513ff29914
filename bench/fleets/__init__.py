"""Thousands of agents that are none, and hostile ones."""
