"""The evidence as values, and words for it."""
