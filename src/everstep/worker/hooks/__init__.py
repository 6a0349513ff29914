"""What is changed in torch so that an unmodified program can be followed."""
