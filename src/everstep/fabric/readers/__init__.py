"""Readers of topology files, one module per format; `find.read_topology` picks one by the content, not by the name."""
