"""Networks that do not exist yet: how many switches, ports and cables, and what they would carry."""
