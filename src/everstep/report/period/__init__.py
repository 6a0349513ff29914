"""A run, or all runs of a directory, in a period of time: the report of a week (docs/report.md). Pure."""
