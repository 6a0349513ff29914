"""A run's directory for its whole life: its lock, its specification, its keys."""
