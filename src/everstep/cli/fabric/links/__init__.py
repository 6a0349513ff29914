"""What crosses the links of a fabric: probes that cover them, counters of their ports, and which of them loses."""
