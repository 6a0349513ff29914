"""Finds slow ranks from steps, arrivals and collectives."""
