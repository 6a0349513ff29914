"""The simulated fleet: its machines, their faults and signs, and what a run on them costs."""
