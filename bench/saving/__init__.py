"""Checkpoints of ours and of others: savers, their program, their figures."""
