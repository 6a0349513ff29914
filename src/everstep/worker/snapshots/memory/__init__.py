"""Where snapshots lie in memory: room for them, page-locked pages, and what a device copies by itself."""
