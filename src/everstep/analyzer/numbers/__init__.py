"""Loss, norms and digests: what no healthy training says."""
