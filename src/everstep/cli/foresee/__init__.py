"""Verbs that answer what would be: other policies, other fleets."""
