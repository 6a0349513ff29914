"""The form of a stored checkpoint: names, manifests, metadata."""
