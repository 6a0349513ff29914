"""The rank's link to its agent: its assignment, its reports, and the thread that answers."""
