"""The place where checkpoints lie: what is there, what is whole, what goes."""
