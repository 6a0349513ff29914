"""How to react to a fault: the rules, which nodes to evict or examine, and when a restart waits."""
