"""What to do about a fault: the rules, who is evicted or examined, and when a restart waits."""
