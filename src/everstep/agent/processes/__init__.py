"""Processes of a node: what they are started with, their channel, their ends and what is reaped."""
