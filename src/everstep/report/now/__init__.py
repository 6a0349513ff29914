"""What a run does now: status, terminal pages, the live line, and what is reported as it happens."""
