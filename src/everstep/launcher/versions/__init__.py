"""The program's code: what a run was started with, and what it is updated to."""
