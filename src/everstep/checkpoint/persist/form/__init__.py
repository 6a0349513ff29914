"""What a stored checkpoint looks like: names, manifests, metadata."""
