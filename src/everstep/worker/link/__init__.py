"""The rank's line to its agent: what it was told to be, what it reports, and the thread that answers."""
