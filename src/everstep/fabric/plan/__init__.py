"""Plans of networks that do not exist yet: numbers of switches, ports and cables, and what they would carry."""
