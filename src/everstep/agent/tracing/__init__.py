"""Traces of one rank: what `everstep trace` and the agent of a slow rank record."""
