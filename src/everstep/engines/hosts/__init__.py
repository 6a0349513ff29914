"""Nodes on other hosts: who may join, what runs where, and what comes back from there."""
