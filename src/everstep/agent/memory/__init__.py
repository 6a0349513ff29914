"""What ranks share with their agent as memory: boards, and the arenas that outlive a rank."""
