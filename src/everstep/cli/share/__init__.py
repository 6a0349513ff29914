"""Verbs that make something to hand on: a report, a bundle, a notice."""
