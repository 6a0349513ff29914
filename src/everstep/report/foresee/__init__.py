"""Pages about what would be, or would have been: `plan`, `policies`, `replay` and `simulate`."""
