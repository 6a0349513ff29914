"""Unauthenticated connections: which of them keep a place, which user they belong to, what was rejected."""
