"""Irregular but healthy jobs, and jobs that hang for certain: the kinds, the program, the run."""
