"""From arenas to stored files."""
