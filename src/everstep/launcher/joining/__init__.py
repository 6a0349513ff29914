"""A host that joins a run."""
