"""What would be, or would have been: pages of `plan`, `policies`, `replay` and `simulate`."""
