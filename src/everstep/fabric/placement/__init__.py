"""Chooses the hosts of a job, and the order of its nodes on them, so that the fullest link carries the least."""
