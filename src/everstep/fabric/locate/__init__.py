"""Finds the link, NIC, switch or host that loses packets, from losses of probes on known paths."""
