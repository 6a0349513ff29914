"""One module per format; `find.read_topology` picks by what is in the file, not by its name."""
