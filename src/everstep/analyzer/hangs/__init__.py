"""Does the job stand still, whom does it wait for, and could that end by itself."""
