"""What would happen to a fleet: how many standbys it needs. No clock, no network, no files."""
