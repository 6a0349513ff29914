"""Which line explains an end, and which only stands in the same log."""
