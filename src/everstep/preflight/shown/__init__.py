"""The result as a page, a table, or a sentence."""
