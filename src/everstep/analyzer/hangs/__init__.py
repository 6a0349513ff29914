"""Hang analysis: does the job stand still, which rank does it wait for, and could that end by itself."""
