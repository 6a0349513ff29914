"""Ranks whose data takes long on its way, or is lost there."""
