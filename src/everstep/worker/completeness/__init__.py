"""Whether a State keeps all that a step changes, and whether a restore gave all of it back."""
