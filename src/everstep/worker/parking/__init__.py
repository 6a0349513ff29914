"""Parking: a rank forks a twin of itself at the last moment at which it can be forked; when the rank has to come back,
the twin continues from there. What it holds was made by this program, in its own environment and order (ADR 0019).

`begin` is called before the program's first line, `effects` and `reads` decide when the moment has come and whether it
is still valid later, `twin` forks and serves. Until torch is loaded nothing here imports more than `os` and `sys`.
"""
