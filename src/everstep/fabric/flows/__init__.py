"""What a network carries: flows on routed paths that share links max-min fairly. No packets, no clock."""
