"""A Slurm allocation: its nodes are given to the run, and their faults are reported to Slurm in its own terms."""
