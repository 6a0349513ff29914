"""Sums of what a rank holds, so that replicas can be compared: parameters, random states, numbers."""
