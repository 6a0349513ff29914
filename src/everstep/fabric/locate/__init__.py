"""From losses of probes on known paths to the link, NIC, switch or host that loses them."""
