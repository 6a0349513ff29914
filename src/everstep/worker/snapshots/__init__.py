"""`State` and its snapshots: taking them without a stall, and restoring them."""
