"""A Slurm allocation: its nodes are given to the run, and what happens to them is told to Slurm in its own terms."""
