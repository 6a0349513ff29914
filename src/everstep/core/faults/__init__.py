"""Faults: exits, hangs, anomalies, alerts, damage, lost nodes, and drills of them."""
