"""`everstep top`."""
