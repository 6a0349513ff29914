"""Collectives of a job by group and operation: streams of what ranks entered go in, a table comes out. Pure."""
