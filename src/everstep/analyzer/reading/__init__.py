"""Stacks, flight records and log lines, as they were written, into records."""
