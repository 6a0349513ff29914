"""What leaves this machine: without secrets (docs/report.md). Pure."""
