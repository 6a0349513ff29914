"""Verbs that start, change or end something."""
