"""Checks that compute, write or send: they disturb a job, so they run without one."""
