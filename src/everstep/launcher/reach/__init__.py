"""How hosts of a run find each other, and what proves that they belong to it."""
