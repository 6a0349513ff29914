"""Verbs that look at a job, a machine, a checkpoint or a log, and say what is wrong with it."""
