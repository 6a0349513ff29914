"""How long a node may go on when nothing of it arrives, and the gate that all reports and commands pass."""
