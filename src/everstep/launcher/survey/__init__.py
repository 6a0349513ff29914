"""Before a run over several hosts: what would keep them from becoming one run, found out by all of them together."""
