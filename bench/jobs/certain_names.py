"""The names of all kinds of hangs."""

from jobs.kind_names import marked

CERTAIN = marked("certain_kinds.py", ["certain"])
DOUBTFUL = marked("certain_kinds.py", ["doubtful"])
COMPUTES = ("loop-python", "loop-torch", "loop-child")
"""Of the doubtful ones: with State they have a minute, the others 30 s."""
