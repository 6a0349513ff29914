"""Memory that ranks share with their agent: boards, and the arenas that outlive a rank."""
