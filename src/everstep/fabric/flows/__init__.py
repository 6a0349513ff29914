"""What a network carries: flows on routed paths share links max-min fairly. There are no packets and no clock."""
