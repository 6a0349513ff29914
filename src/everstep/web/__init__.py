"""The page: pages, files and the live feed, for the controller's port and for `everstep ui` (docs/page.md)."""
