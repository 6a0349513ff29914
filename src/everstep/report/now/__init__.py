"""Pages about the present state of a run: status, terminal pages, the live line, and what is reported as it happens."""
