"""The request of the command line, the environment and the file, and whether it can be carried out."""
