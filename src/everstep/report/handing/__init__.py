"""What leaves this machine: forms of an incident, without secrets (docs/report.md). Pure."""
