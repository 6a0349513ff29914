"""Verbs that show a run: now, or from its records."""
