"""What the command line, the environment and the file ask for, and whether it can be done."""
