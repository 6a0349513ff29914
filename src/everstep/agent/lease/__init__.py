"""How long a node may continue when none of its messages arrives, and the gate that all reports and commands pass."""
