"""Flows on a network: on routed paths, they share links max-min fairly. There are no packets and no clock."""
