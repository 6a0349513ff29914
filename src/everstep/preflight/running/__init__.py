"""Processes in which the checks run."""
