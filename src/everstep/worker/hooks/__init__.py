"""Changes to torch with which an unmodified program can be followed."""
