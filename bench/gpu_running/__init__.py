"""What runs the parts of bench/gpu.py: the Python to run them with, what it lacks, time limits, and what is kept."""
