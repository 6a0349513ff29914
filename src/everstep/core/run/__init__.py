"""The ordinary life of a run: forming a generation, its progress, standing still, updates, the end."""
