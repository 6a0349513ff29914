"""Forms of an incident that leave this machine, without secrets (docs/report.md). Pure."""
