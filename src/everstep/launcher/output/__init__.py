"""The ranks' output on the terminal, and what everstep says between it."""
