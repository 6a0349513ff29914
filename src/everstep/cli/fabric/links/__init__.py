"""Commands about links: choose probes that cover them, send probes, count at ports, and find a faulty link."""
